"""1x1 convolutions that sum in float64, for the few whose rounding decides how exact a whole network is.

A stage's first shortcut carries all that is known so far, undamped, over hundreds of channels that are all positive.
Summed in float64 the four of them cost a hundredth of the pyramid's time and halve the error of its last maps.
"""

from __future__ import annotations

from torch import Tensor, nn

from .backbone import Conv


class WideConv(nn.Module):
    """What a float32 1x1 convolution without groups does, its norm merged; it is not changed.

    Maps [B,C,h,w] to [B,O,ceil(h/stride),ceil(w/stride)], channels last.
    """

    def __init__(self, conv: Conv):
        super().__init__()
        self.stride = conv.stride
        self.register_buffer("weight", conv.weight[:, :, 0, 0].double().t().contiguous())
        self.register_buffer("bias", conv.bias.double())

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.stride
        cells = x[:, :, ::rows, ::columns].permute(0, 2, 3, 1).double()
        return (cells @ self.weight).add_(self.bias).to(x.dtype).permute(0, 3, 1, 2)


def use_wide(network: nn.Module, names: tuple[str, ...]) -> None:
    """Replace a network's convolutions of these names, for good."""
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, WideConv(network.get_submodule(name)))
