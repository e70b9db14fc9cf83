import pytest
import torch
from torch import nn

from extractor.winograd import WinogradConv, use_winograd
from extractor.winograd_small import SmallMapConv


def convolution(inputs, outputs, bias=True):
    torch.manual_seed(3)
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(7, 7), (8, 4), (1, 1), (5, 13)])
def test_it_is_a_convolution(size, bias):
    conv = convolution(24, 40, bias)
    x = torch.randn(3, 24, *size)
    found = SmallMapConv(conv)(x.contiguous(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), conv.double()(x.double()), rtol=0, atol=2e-5)


def test_a_map_does_not_depend_on_the_others():
    conv = SmallMapConv(convolution(32, 32))
    maps = torch.randn(6, 32, 7, 7)
    other = maps.clone()
    other[[0, 2, 3, 4, 5]] = torch.randn(5, 32, 7, 7)
    assert torch.equal(conv(maps)[1], conv(other)[1])


def test_it_stands_where_a_network_says_that_maps_are_small():
    network = nn.ModuleDict({name: nn.Sequential(convolution(256, 256)) for name in ("head", "body")})
    use_winograd(network, ("head",))
    assert isinstance(network["head"][0], SmallMapConv) and isinstance(network["body"][0], WinogradConv)
