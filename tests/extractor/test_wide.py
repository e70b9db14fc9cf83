import pytest
import torch

from extractor.backbone import Conv, FrozenBatchNorm2d
from extractor.configs import FPNConfig
from extractor.fpn_detector import FPNDetector
from extractor.networks import make_fast
from extractor.wide import WideConv

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


@pytest.mark.parametrize("stride", [1, 2])
def test_float32_of_the_exact_sums(stride):
    torch.manual_seed(0)
    conv = Conv(512, 24, 1, FrozenBatchNorm2d, stride).requires_grad_(False)
    conv.norm.bias.normal_()
    conv.fold()
    x = torch.rand(2, 512, 7, 10).contiguous(memory_format=torch.channels_last)
    found = WideConv(conv)(x)
    assert found.dtype == torch.float32 and found.is_contiguous(memory_format=torch.channels_last)
    direct, exact = conv(x), conv.double()(x.double())
    assert torch.equal(found, exact.float()) and not torch.equal(direct, exact.float())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_pyramid_has_them_in_float32_alone(precision):
    network = make_fast(FPNDetector(SMALL), torch.device("cpu"), precision)
    wide = [name for name, module in network.named_modules() if isinstance(module, WideConv)]
    assert wide == (list(FPNDetector.widened) if precision == "float32" else [])
    levels = network.backbone(torch.zeros(1, 3, 64, 64, dtype=network.backbone.fpn_output2.weight.dtype))
    assert [level.shape[2] for level in levels] == [16, 8, 4, 2, 1]
