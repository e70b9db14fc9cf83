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

    Maps lie channels last. With `planes` the products are summed as on maps that lie plane by plane, which is how the
    published systems keep them. Mostly that is the same order.
    """

    def __init__(self, conv: Conv, planes: bool = False):
        super().__init__()
        self.shape, self.planes = conv.weight.shape, planes
        self.options = (conv.stride, conv.padding, conv.dilation, conv.groups)
        self.register_buffer("weight", conv.weight.detach().flatten(1))  # so that its memory format is nobody's choice
        scale, shift = conv.norm.float32_scale_and_shift()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(x, None, relu=False)

    def conv_relu(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `fused.conv_relu`."""
        return self._pass(x, residual, relu=True)

    def _pass(self, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
        layout = torch.contiguous_format if self.planes else torch.channels_last
        result = F.conv2d(x.contiguous(memory_format=layout), self.weight.view(self.shape), None, *self.options)
        result = result.contiguous(memory_format=torch.channels_last)
        added = None if residual is None else self._blocks(residual.contiguous(memory_format=torch.channels_last))
        for number, block in enumerate(self._blocks(result)):
            block.mul_(self.scale).add_(self.shift)
            if added is not None:
                block.add_(added[number])
            if relu:
                block.relu_()
        return result

    @staticmethod
    def _blocks(maps: Tensor) -> tuple[Tensor, ...]:
        """A map's pixels, [n,C] each."""
        channels = maps.shape[1]
        return maps.permute(0, 2, 3, 1).view(-1, channels).split(max(1, BLOCK // channels))


def use_stepwise(network: nn.Module, names: tuple[str, ...], planes: tuple[str, ...] = ()) -> None:
    """Replace, for good, the convolutions with norms within a network's submodules of these names.

    `planes` are the names of those, out of them, that sum plane by plane.
    """
    for name in names:
        for child, conv in list(network.get_submodule(name).named_modules(prefix=name)):
            if isinstance(conv, Conv):
                parent, _, own = child.rpartition(".")
                by_planes = any(child.startswith(f"{path}.") for path in planes)
                setattr(network.get_submodule(parent), own, StepwiseConv(conv, by_planes))
