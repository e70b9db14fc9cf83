import pytest
import torch
import torch.nn.functional as F

from extractor import stepwise
from extractor.backbone import Bottleneck, Conv
from extractor.configs import FPNConfig
from extractor.fpn import NormWithoutEpsilon
from extractor.fpn_detector import FPNDetector
from extractor.fused import conv_relu
from extractor.networks import make_fast
from extractor.stepwise import StepwiseConv

SMALL = FPNConfig(
    stem_channels=8,
    widths=(8, 8, 16, 16),
    channels=(16, 16, 24, 32),
    blocks=(1, 1, 1, 1),
    groups=4,
    pyramid_channels=16,
    hidden=16,
    num_classes=5,
)


def randomised(module):
    torch.manual_seed(0)
    for name, tensor in module.state_dict().items():
        tensor.uniform_(0.5, 1.5) if name.endswith("running_var") else tensor.normal_()
    return module.eval().requires_grad_(False)


def published(conv, x):
    """The convolution on a map that lies as `x` does, then the norm as two operations on the whole map."""
    scale = conv.norm.weight * conv.norm.running_var.rsqrt()
    shift = conv.norm.bias - conv.norm.running_mean * scale
    products = F.conv2d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
    return products * scale[:, None, None] + shift[:, None, None]


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(1, 1, 1), (1, 2, 1), (3, 1, 4), (3, 2, 4), (7, 2, 1)])
def test_the_bits_of_the_published_steps(monkeypatch, kernel, stride, groups, planes):
    monkeypatch.setattr(stepwise, "BLOCK", 500)  # maps are more than one block, the last is not full
    conv = randomised(Conv(16, 24, kernel, NormWithoutEpsilon, stride, groups=groups))
    step = StepwiseConv(conv, planes)
    x = torch.randn(2, 16, 13, 9).contiguous(memory_format=torch.channels_last)
    expected = published(conv, x.contiguous() if planes else x)
    residual = torch.randn(expected.shape)
    for found, wanted in (
        (step(x), expected),
        (conv_relu(step, x), F.relu(expected)),
        (conv_relu(step, x, residual), F.relu(expected + residual)),
    ):
        assert torch.equal(found, wanted) and found.is_contiguous(
            memory_format=torch.contiguous_format if planes else torch.channels_last
        )
    merged = randomised(Conv(16, 24, kernel, NormWithoutEpsilon, stride, groups=groups))
    merged.fold()
    assert not torch.equal(merged(x), expected)


def test_a_shortcut_is_not_changed_for_who_else_reads_it():
    block = randomised(Bottleneck(16, 8, 16, NormWithoutEpsilon))
    x = torch.randn(1, 16, 6, 6).contiguous(memory_format=torch.channels_last)
    before, expected = x.clone(), block(x)
    stepwise.use_stepwise(torch.nn.ModuleDict({"res2": block}), ("res2",))
    torch.testing.assert_close(block(x), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_pyramid_has_them_in_float32_alone(precision):
    network = randomised(FPNDetector(SMALL))
    images = torch.randn(1, 3, 64, 64)
    expected = network.backbone(images)
    network = make_fast(network, torch.device("cpu"), precision)
    steps = {name: module for name, module in network.named_modules() if isinstance(module, StepwiseConv)}
    planes = [name for name, module in steps.items() if module.planes]
    if precision == "float32":
        assert len(steps) == 1 + 4 * 4 and all(name.startswith("backbone.bottom_up.") for name in steps)
        assert len(planes) == 8 and all(".res4." in name or ".res5." in name for name in planes)
        for level, wanted in zip(network.backbone(images), expected, strict=True):
            torch.testing.assert_close(level, wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))
    else:
        assert not steps
