"""Residual networks under detectron2's tensor names, and the C4 backbone: Caffe's, up to res4."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configs import C4Config
from .fused import conv_relu

MIN_SIDE = 3  # pixels; the unpadded max-pool needs that much to put out one cell

Norm = Callable[[int], nn.Module]


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation with stored statistics: (x - mean) / sqrt(var + eps) * weight + bias, per channel."""

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """The same as x * scale + shift: f64[channels] each."""
        scale = self.weight.double() / (self.running_var.double() + self.eps).sqrt()
        return scale, self.bias.double() - self.running_mean.double() * scale

    def float32_scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """As `scale_and_shift`, f32, rounded at each step as maskrcnn-benchmark does."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale


class Conv(nn.Conv2d):
    """Convolution without bias followed by its norm, the norm's tensors under `.norm`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1, dilation: int = 1, groups: int = 1
    ):
        padding = dilation * (kernel // 2)
        super().__init__(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False)
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))

    def fold(self) -> None:
        """Merge the frozen norm into weight and bias, for good: one pass over the map instead of two."""
        scale, shift = self.norm.scale_and_shift()
        self.weight = nn.Parameter((self.weight.double() * scale[:, None, None, None]).float(), requires_grad=False)
        self.bias = nn.Parameter(shift.float(), requires_grad=False)
        self.norm = nn.Identity()


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a residual.

    The stride sits in the first 1x1 convolution, as in the original Caffe weights; in a ResNeXt, whose 3x3 convolution
    has groups, it sits there.
    """

    def __init__(
        self, inputs: int, width: int, outputs: int, norm: Norm, stride: int = 1, dilation: int = 1, groups: int = 1
    ):
        super().__init__()
        first, second = (stride, 1) if groups == 1 else (1, stride)
        self.shortcut = Conv(inputs, outputs, 1, norm, stride) if stride != 1 or inputs != outputs else None
        self.conv1 = Conv(inputs, width, 1, norm, first)
        self.conv2 = Conv(width, width, 3, norm, second, dilation, groups)
        self.conv3 = Conv(width, outputs, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.shortcut is None else self.shortcut(x)
        return conv_relu(self.conv3, conv_relu(self.conv2, conv_relu(self.conv1, x)), residual)


def make_stage(
    blocks: int, inputs: int, width: int, outputs: int, norm: Norm, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Sequential:
    """One residual stage; the first block changes the number of channels and takes the stride."""
    first = Bottleneck(inputs, width, outputs, norm, stride, dilation, groups)
    rest = (Bottleneck(outputs, width, outputs, norm, 1, dilation, groups) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


class Stem(nn.Module):
    """7x7 stride-2 convolution and a 3x3 stride-2 max-pool.

    The pool is Caffe's, without padding and its output size rounded up, or that of torch's ResNets, padded by 1.
    """

    def __init__(self, channels: int, norm: Norm, caffe_pool: bool = True):
        super().__init__()
        self.conv1 = Conv(3, channels, 7, norm, stride=2)
        self.caffe_pool = caffe_pool

    def forward(self, x: Tensor) -> Tensor:
        padding = 0 if self.caffe_pool else 1
        return F.max_pool2d(conv_relu(self.conv1, x), 3, 2, padding, ceil_mode=self.caffe_pool)


class Backbone(nn.Module):
    """Images f32[B,3,h,w] to the res4 map f32[B,C,~h/16,~w/16]; h and w at least MIN_SIDE.

    `groups` of the 3x3 convolutions make it a ResNeXt; for `caffe_pool` see `Stem`.
    """

    stride = 16

    def __init__(self, config: C4Config, norm: Norm = FrozenBatchNorm2d, groups: int = 1, caffe_pool: bool = True):
        super().__init__()
        (c2, c3, c4, _), (w2, w3, w4, _), (b2, b3, b4, _) = config.channels, config.widths, config.blocks
        self.stem = Stem(config.stem_channels, norm, caffe_pool)
        self.res2 = make_stage(b2, config.stem_channels, w2, c2, norm, groups=groups)
        self.res3 = make_stage(b3, c2, w3, c3, norm, stride=2, groups=groups)
        self.res4 = make_stage(b4, c3, w4, c4, norm, stride=2, groups=groups)

    def forward(self, images: Tensor) -> Tensor:
        return self.res4(self.res3(self.res2(self.stem(images))))
