"""The C4 backbone: a ResNet up to res4 as the Caffe detectors had it, under detectron2's tensor names."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .presets import C4Config

MIN_SIDE = 3  # pixels; the unpadded max-pool needs that much to put out one cell

Norm = Callable[[int], nn.Module]


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation with stored statistics: (x - mean) / sqrt(var + 1e-5) * weight + bias, per channel."""

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, 1e-5)


class Conv(nn.Conv2d):
    """Convolution without bias followed by its norm, the norm's tensors under `.norm`."""

    def __init__(self, inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1, dilation: int = 1):
        padding = dilation * (kernel // 2)
        super().__init__(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a residual; the stride sits in the first 1x1 convolution, as in the original Caffe weights."""

    def __init__(self, inputs: int, width: int, outputs: int, norm: Norm, stride: int = 1, dilation: int = 1):
        super().__init__()
        self.shortcut = Conv(inputs, outputs, 1, norm, stride) if stride != 1 or inputs != outputs else None
        self.conv1 = Conv(inputs, width, 1, norm, stride)
        self.conv2 = Conv(width, width, 3, norm, dilation=dilation)
        self.conv3 = Conv(width, outputs, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.shortcut is None else self.shortcut(x)
        x = F.relu(self.conv1(x), inplace=True)
        x = F.relu(self.conv2(x), inplace=True)
        return F.relu(self.conv3(x).add_(residual), inplace=True)


def make_stage(
    blocks: int, inputs: int, width: int, outputs: int, norm: Norm, stride: int = 1, dilation: int = 1
) -> nn.Sequential:
    """One residual stage; the first block changes the number of channels and takes the stride."""
    first = Bottleneck(inputs, width, outputs, norm, stride, dilation)
    rest = (Bottleneck(outputs, width, outputs, norm, 1, dilation) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


class Stem(nn.Module):
    """7x7 stride-2 convolution and a 3x3 stride-2 max-pool without padding, output size rounded up (Caffe's rule)."""

    def __init__(self, channels: int, norm: Norm):
        super().__init__()
        self.conv1 = Conv(3, channels, 7, norm, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.conv1(x), inplace=True), 3, 2, 0, ceil_mode=True)


class Backbone(nn.Module):
    """Images f32[B,3,h,w] to the res4 map f32[B,C,~h/16,~w/16]; h and w at least MIN_SIDE."""

    stride = 16

    def __init__(self, config: C4Config, norm: Norm = FrozenBatchNorm2d):
        super().__init__()
        (c2, c3, c4, _), (w2, w3, w4, _), (b2, b3, b4, _) = config.channels, config.widths, config.blocks
        self.stem = Stem(config.stem_channels, norm)
        self.res2 = make_stage(b2, config.stem_channels, w2, c2, norm)
        self.res3 = make_stage(b3, c2, w3, c3, norm, stride=2)
        self.res4 = make_stage(b4, c3, w4, c4, norm, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        return self.res4(self.res3(self.res2(self.stem(images))))
