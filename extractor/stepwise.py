"""Convolutions that keep their frozen norm, for networks whose results hang on how the published system rounds.

Merged into a convolution's weights a norm costs nothing, but every sum is then rounded otherwise. Errors that small are
soon as large as those of the published float32 itself, and where boxes come from deep maps they show: by a thousandth
of a pixel, and in what is pooled there. Step by step they are the same errors, for the most part to the bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbone import Conv

BLOCK = 1 << 17  # numbers that norm, sum and ReLU pass through together, small enough for the cache


class StepwiseConv(nn.Module):
    """What a float32 convolution does, and then its norm as maskrcnn-benchmark rounds it; neither is changed.

    Puts out maps channels last, with `planes` plane by plane, as the published systems keep them: there a convolution
    may sum in another order.
    """

    def __init__(self, conv: Conv, planes: bool = False):
        super().__init__()
        self.shape, self.planes = conv.weight.shape, planes
        self.options = (conv.stride, conv.padding, conv.dilation, conv.groups)
        self.register_buffer("weight", conv.weight.detach().flatten(1))  # so that its memory format is nobody's choice
        scale, shift = conv.norm.float32_scale_and_shift()
        self.register_buffer("scale", scale[:, None, None])
        self.register_buffer("shift", shift[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(x, None, relu=False)

    def conv_relu(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `fused.conv_relu`."""
        return self._pass(x, residual, relu=True)

    def _pass(self, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
        layout, axis = (torch.contiguous_format, 1) if self.planes else (torch.channels_last, 2)
        result = F.conv2d(x.contiguous(memory_format=layout), self.weight.view(self.shape), None, *self.options)
        result = result.contiguous(memory_format=layout)
        step = max(1, BLOCK * result.shape[axis] // max(1, result.numel()))
        for start in range(0, result.shape[axis], step):
            channels = slice(start, start + step) if self.planes else slice(None)
            part = result.narrow(axis, start, min(step, result.shape[axis] - start))
            part.mul_(self.scale[channels]).add_(self.shift[channels])
            if residual is not None:
                part.add_(residual.narrow(axis, start, part.shape[axis]))
            if relu:
                part.relu_()
        return result


def use_stepwise(network: nn.Module, names: tuple[str, ...], planes: tuple[str, ...] = ()) -> None:
    """Replace, for good, the convolutions with norms within a network's submodules of these names.

    `planes` are the names of those, out of them, whose maps lie plane by plane.
    """
    for name in names:
        for child, conv in list(network.get_submodule(name).named_modules(prefix=name)):
            if isinstance(conv, Conv):
                parent, _, own = child.rpartition(".")
                by_planes = any(child.startswith(f"{path}.") for path in planes)
                setattr(network.get_submodule(parent), own, StepwiseConv(conv, by_planes))
