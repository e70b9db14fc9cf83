"""A feature pyramid on a ResNeXt (Lin et al. 2017; Xie et al. 2017), as maskrcnn-benchmark builds it."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from .backbone import FrozenBatchNorm2d, Norm, Stem, make_stage
from .configs import FPNConfig

STRIDES = (4, 8, 16, 32, 64)  # of P2..P6
MULTIPLE = 32  # what the sides of the input must be divisible by, or the levels would not meet when added

# maskrcnn-benchmark's frozen norm has no epsilon
NormWithoutEpsilon = partial(FrozenBatchNorm2d, eps=0.0)


class ResNeXt(nn.Module):
    """Images f32[B,3,h,w] to the maps res2..res5 of strides 4, 8, 16 and 32."""

    def __init__(self, config: FPNConfig, norm: Norm):
        super().__init__()
        self.stem = Stem(config.stem_channels, norm, caffe_pool=False)
        inputs = config.stem_channels
        stages = zip(config.blocks, config.widths, config.channels, (1, 2, 2, 2), strict=True)
        for number, (blocks, width, outputs, stride) in enumerate(stages, 2):
            stage = make_stage(blocks, inputs, width, outputs, norm, stride, groups=config.groups)
            self.add_module(f"res{number}", stage)
            inputs = outputs

    def forward(self, images: Tensor) -> list[Tensor]:
        maps, x = [], self.stem(images)
        for stage in (self.res2, self.res3, self.res4, self.res5):
            x = stage(x)
            maps.append(x)
        return maps


class FPN(nn.Module):
    """Images f32[B,3,h,w], sides divisible by 32, to P2..P6: [B,C,h/4,w/4] and so on; P6 is every other cell of P5."""

    def __init__(self, config: FPNConfig, norm: Norm = NormWithoutEpsilon):
        super().__init__()
        self.bottom_up = ResNeXt(config, norm)
        for number, channels in enumerate(config.channels, 2):
            self.add_module(f"fpn_lateral{number}", nn.Conv2d(channels, config.pyramid_channels, 1))
            self.add_module(
                f"fpn_output{number}", nn.Conv2d(config.pyramid_channels, config.pyramid_channels, 3, padding=1)
            )

    def forward(self, images: Tensor) -> list[Tensor]:
        inner, pyramid = None, []
        for number, x in reversed(list(enumerate(self.bottom_up(images), 2))):
            lateral = self.get_submodule(f"fpn_lateral{number}")(x)
            inner = lateral if inner is None else lateral.add_(F.interpolate(inner, scale_factor=2.0, mode="nearest"))
            pyramid.insert(0, self.get_submodule(f"fpn_output{number}")(inner))
        pyramid.append(pyramid[-1][:, :, ::2, ::2])
        return pyramid
