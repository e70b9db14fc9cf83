import pytest
import torch
import torch.nn.functional as F
from torch import nn

from extractor.backbone import Bottleneck, Conv, FrozenBatchNorm2d
from extractor.fused import conv_relu
from extractor.winograd import use_winograd


def folded(*args, **kwargs):
    torch.manual_seed(0)
    conv = Conv(*args, norm=FrozenBatchNorm2d, **kwargs).eval().requires_grad_(False)
    conv.norm.bias.normal_()
    conv.fold()
    return conv.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}, {"groups": 4}])
@pytest.mark.parametrize("kernel", [1, 3])
def test_the_bits_of_the_steps_one_by_one(kernel, options):
    conv = folded(16, 24, kernel, **options)
    x = torch.randn(2, 16, 13, 9).contiguous(memory_format=torch.channels_last)
    plain = conv(x)
    residual = torch.randn(plain.shape).contiguous(memory_format=torch.channels_last)
    assert torch.equal(conv_relu(conv, x), F.relu(plain))
    expected, found = F.relu(plain + residual), conv_relu(conv, x, residual)
    if conv.groups == 1:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_lower_precision_is_rounded_once():
    conv = folded(64, 32, 1)
    x, residual = (
        torch.randn(1, channels, 7, 7).bfloat16().contiguous(memory_format=torch.channels_last) for channels in (64, 32)
    )
    exact = F.relu(conv.double()(x.double()) + residual.double())
    conv = conv.bfloat16()
    for layout in (torch.channels_last, torch.contiguous_format):  # the second has no operator
        lower = conv_relu(conv, x.contiguous(memory_format=layout), residual.contiguous(memory_format=layout).clone())
        assert lower.dtype == torch.bfloat16
        torch.testing.assert_close(lower.double(), exact, rtol=0.02, atol=0.02)


def test_what_is_trained_or_replaced_runs_step_by_step():
    block = Bottleneck(256, 256, 256, FrozenBatchNorm2d)
    x = torch.randn(1, 256, 7, 7, requires_grad=True)
    before = x.detach().clone()
    expected = block(x)
    expected.sum().backward()
    assert x.grad is not None and torch.equal(x.detach(), before)
    block.requires_grad_(False)
    for module in block.modules():
        if isinstance(module, Conv):
            module.fold()
    use_winograd(nn.ModuleList([block]))
    torch.testing.assert_close(block(before), expected.detach(), rtol=1e-4, atol=1e-4)
