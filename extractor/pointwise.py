"""1x1 convolution of many small maps in float32 on a CPU as one product of matrices.

torch's CPU library cuts a convolution into the maps of each RoI. Where these are small and have many channels, it takes
a fifth longer than the product that the convolution is.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .backbone import Conv

MIN_CHANNELS = 2048  # below, the convolution is as fast; with a stride, below half of them


class PointwiseConv(nn.Module):
    """What a 1x1 convolution without padding and groups does.

    Args:
        conv: a float32 convolution of that kind; it is not changed.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.stride = conv.stride
        self.register_buffer("weight", conv.weight.detach().flatten(1).t().contiguous())  # [inputs, outputs]
        self.register_buffer("bias", conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,h,w] to [B,O,h,w] or less with a stride, channels last."""
        return self._pass(x, None, relu=False)

    def conv_relu(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `fused.conv_relu`."""
        return self._pass(x, residual, relu=True)

    def _pass(self, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
        down, across = self.stride
        cells = x.permute(0, 2, 3, 1)[:, ::down, ::across]
        result = torch.addmm(self.bias, cells.reshape(-1, x.shape[1]), self.weight)
        if residual is not None:
            result.add_(residual.permute(0, 2, 3, 1).reshape(result.shape))
        if relu:
            result.relu_()
        return result.view(*cells.shape[:3], -1).permute(0, 3, 1, 2)


def use_pointwise(network: nn.Module, names: Iterable[str]) -> None:
    """Replace, for good, the convolutions that gain from it within a network's submodules of these names."""
    for parent in [module for name in names for module in network.get_submodule(name).modules()]:
        for name, child in list(parent.named_children()):
            if _gains(child):
                setattr(parent, name, PointwiseConv(child))


def _gains(module: nn.Module) -> bool:
    if not isinstance(module, Conv) or not isinstance(module.norm, nn.Identity) or module.weight.dtype != torch.float32:
        return False
    shape = module.kernel_size, module.padding, module.groups
    enough = MIN_CHANNELS if module.stride == (1, 1) else MIN_CHANNELS // 2
    return shape == ((1, 1), (0, 0), 1) and min(module.in_channels, module.out_channels) >= enough
