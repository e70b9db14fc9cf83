import pytest
import torch
from torch import nn

import extractor.winograd as module
from extractor.backbone import Conv, FrozenBatchNorm2d
from extractor.winograd import WinogradConv, use_winograd


def convolution(inputs, outputs, bias=True):
    torch.manual_seed(inputs + outputs)
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (7, 7), (5, 12), (41, 30)])
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("tiles", [1, 40, 1024])
def test_what_the_convolution_does(size, batch, tiles, monkeypatch):
    monkeypatch.setattr(module, "TILES", tiles)
    for conv in (convolution(8, 5), convolution(3, 4, bias=False)):
        x = torch.randn(batch, conv.in_channels, *size).contiguous(memory_format=torch.channels_last)
        found, expected = WinogradConv(conv)(x), conv.double()(x.double())
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(WinogradConv(conv.float())(x.contiguous()), found)


def test_as_close_to_float64_as_the_direct_way():
    conv = convolution(512, 512)
    x = torch.randn(1, 512, 20, 20).contiguous(memory_format=torch.channels_last)
    ways = WinogradConv(conv), conv.to(memory_format=torch.channels_last)
    found = [way(x).double() for way in ways]
    expected = conv.double()(x.double())
    mine, direct = ((values - expected).square().mean().sqrt() for values in found)
    assert mine < 1.2 * direct and mine < 1e-6 * expected.std()


def test_a_map_does_not_depend_on_the_others():
    conv = WinogradConv(convolution(256, 256))
    maps = torch.randn(24, 256, 7, 7).contiguous(memory_format=torch.channels_last)
    together = conv(maps)
    for order in (torch.arange(23, -1, -1), torch.arange(24).roll(5)):
        assert torch.equal(conv(maps[order].contiguous(memory_format=torch.channels_last)), together[order])


def test_only_what_gains_is_replaced():
    folded = Conv(256, 256, 3, FrozenBatchNorm2d)
    folded.fold()
    network = nn.ModuleDict(
        {
            "plain": convolution(256, 256),
            "folded": folded,
            "norm": Conv(256, 256, 3, FrozenBatchNorm2d),
            "few": convolution(64, 256),
            "strided": nn.Conv2d(256, 256, 3, 2, 1),
            "dilated": nn.Conv2d(256, 256, 3, 1, 2, 2),
            "grouped": nn.Conv2d(256, 256, 3, 1, 1, groups=4),
            "point": nn.Conv2d(256, 256, 1),
            "lower": convolution(256, 256).to(torch.bfloat16),
        }
    )
    use_winograd(network)
    assert [name for name, child in network.items() if isinstance(child, WinogradConv)] == ["plain", "folded"]
