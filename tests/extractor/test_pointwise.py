import pytest
import torch
import torch.nn.functional as F
from torch import nn

import extractor.pointwise as module
from extractor.backbone import Conv, FrozenBatchNorm2d, make_stage
from extractor.fused import conv_relu
from extractor.networks import make_fast
from extractor.pointwise import PointwiseConv, use_pointwise


def convolution(inputs, outputs, kernel=1, **options):
    torch.manual_seed(3)
    conv = Conv(inputs, outputs, kernel, FrozenBatchNorm2d, **options)
    conv.norm.bias.normal_()
    conv.fold()
    return conv.requires_grad_(False)


@pytest.mark.parametrize("size", [(4, 4), (1, 1), (3, 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_it_is_a_convolution_with_what_follows_it(size, stride):
    conv = convolution(24, 40, stride=stride)
    x = torch.randn(6, 24, *size).contiguous(memory_format=torch.channels_last)
    point, expected = PointwiseConv(conv), conv.double()(x.double())
    residual = torch.randn(expected.shape).contiguous(memory_format=torch.channels_last)
    ways = [
        (point(x), expected),
        (conv_relu(point, x), F.relu(expected)),
        (conv_relu(point, x, residual.clone()), F.relu(expected + residual)),
        (conv_relu(point, x.contiguous(), residual.contiguous()), F.relu(expected + residual)),
    ]
    for found, values in ways:
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found.double(), values, rtol=0, atol=1e-5)


def test_a_map_does_not_depend_on_the_others():
    point = PointwiseConv(convolution(64, 64))
    maps = torch.randn(6, 64, 4, 4)
    other = maps.clone()
    other[[0, 2, 3, 4, 5]] = torch.randn(5, 64, 4, 4)
    assert torch.equal(point(maps)[1], point(other)[1])


def test_only_what_gains_is_replaced(monkeypatch):
    monkeypatch.setattr(module, "MIN_CHANNELS", 32)
    kinds = {
        "wide": convolution(32, 32),
        "narrow": convolution(16, 32),
        "strided": convolution(16, 32, stride=2),
        "grouped": convolution(32, 32, groups=2),
        "spread": convolution(32, 32, 3),
        "lower": convolution(32, 32).to(torch.bfloat16),
        "norm": Conv(32, 32, 1, FrozenBatchNorm2d),
    }
    network = nn.ModuleDict({"head": nn.ModuleDict(kinds), "body": nn.ModuleDict({"wide": convolution(32, 32)})})
    use_pointwise(network, ("head",))
    replaced = [name for name, child in network.named_modules() if isinstance(child, PointwiseConv)]
    assert replaced == ["head.wide", "head.strided"]


@pytest.mark.parametrize("precision, count", [("float32", 6), ("bfloat16", 0)])
def test_where_a_network_says_that_maps_are_small(monkeypatch, precision, count):
    monkeypatch.setattr(module, "MIN_CHANNELS", 64)
    network = nn.ModuleDict({"head": make_stage(3, 32, 64, 64, FrozenBatchNorm2d, 2, groups=4)})
    network.reduced = network.small_maps = ("head",)
    make_fast(network, torch.device("cpu"), precision)
    assert sum(isinstance(child, PointwiseConv) for child in network.modules()) == count
