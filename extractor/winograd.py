"""3x3 convolution in float32 on a CPU with 4 multiplications where 9 are usual (Winograd; Lavin and Gray 2016).

F(2x2, 3x3): every 2x2 patch of the output comes from 16 products of a transformed 4x4 patch of the input with
transformed weights, summed over the channels. The transforms are sums and halves only, and the sums are a ninth as long
as usual, so the result is at least as close to that of float64 as a direct convolution's (in the pyramid's detector its
error is that of maps plane by plane, three quarters of that of a direct one on channels-last maps).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbone import Conv
from .winograd_small import SmallMapConv

TILES = 512  # transformed together: enough for a matrix product, few enough for the cache
MIN_CHANNELS = 256  # below, the transforms cost more than the products save


def use_winograd(network: nn.Module, small_maps: Iterable[str] = ()) -> None:
    """Replace the convolutions of a network that gain from it, for good: float32, 3x3, many channels, norms merged.

    Those within the submodules `small_maps` become the faster and less exact ones of winograd_small.py.
    """
    small = {module for name in small_maps for module in network.get_submodule(name).modules()}
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if _gains(child):
                setattr(parent, name, (SmallMapConv if child in small else WinogradConv)(child))


def _gains(module: nn.Module) -> bool:
    plain = type(module) is nn.Conv2d or (isinstance(module, Conv) and isinstance(module.norm, nn.Identity))
    if not plain or module.weight.dtype != torch.float32:
        return False
    shape = (module.kernel_size, module.stride, module.padding, module.dilation, module.groups)
    enough = min(module.in_channels, module.out_channels) >= MIN_CHANNELS
    return enough and shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1)


class WinogradConv(nn.Module):
    """What a 3x3 convolution with stride 1, padding 1 and no groups does.

    Args:
        conv: a float32 convolution of that kind; it is not changed.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
        weight = torch.einsum("ia,ocab,jb->ijco", g, conv.weight.double(), g).flatten(0, 1)
        self.register_buffer("weight", weight.float().contiguous())  # [16, inputs, outputs]
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,h,w] to [B,O,h,w], channels last."""
        batch, channels, height, width = x.shape
        rows, columns = (height + 1) // 2, (width + 1) // 2
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1 + width % 2, 1, 1 + height % 2))
        result = x.new_empty(batch, rows, 2, columns, 2, self.weight.shape[2])
        if rows * columns <= TILES:  # whole maps together, in equal parts: none is treated otherwise than the rest
            step = max(n for n in range(1, TILES // (rows * columns) + 1) if batch % n == 0)
            for start in range(0, batch, step):
                self._strip(padded[start : start + step], result[start : start + step])
        else:  # strips of one map
            step = max(1, TILES // columns)
            for i in range(batch):
                for row in range(0, rows, step):
                    strip = padded[i : i + 1, 2 * row : 2 * min(row + step, rows) + 2]
                    self._strip(strip, result[i : i + 1, row : row + step])
        result = result.reshape(batch, 2 * rows, 2 * columns, -1)[:, :height, :width]
        return result.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)

    def _strip(self, padded: Tensor, out: Tensor) -> None:
        """Fill out [b,rows,2,columns,2,O] from padded [b,2*rows+2,2*columns+2,C]."""
        batch, rows, _, columns, _, outputs = out.shape
        patches = padded.new_empty(4, 4, batch, rows, columns, padded.shape[3])
        for i, line in enumerate(_spread([padded[:, i : i + 2 * rows : 2] for i in range(4)])):
            cells = [line[:, :, j : j + 2 * columns : 2] for j in range(4)]
            _spread(cells, patches[i])
        products = torch.bmm(patches.reshape(16, -1, padded.shape[3]), self.weight)
        products = products.reshape(4, 4, batch, rows, columns, outputs)
        for a, lines in enumerate(_gather(products)):
            for b, cells in enumerate(_gather(lines)):
                out[:, :, a, :, b] = cells if self.bias is None else cells.add_(self.bias)


def _spread(d, out: Tensor | None = None) -> list[Tensor]:
    """Four inputs in a row to their four transforms."""
    into = [None] * 4 if out is None else out
    return [
        torch.sub(d[0], d[2], out=into[0]),
        torch.add(d[1], d[2], out=into[1]),
        torch.sub(d[2], d[1], out=into[2]),
        torch.sub(d[1], d[3], out=into[3]),
    ]


def _gather(m) -> tuple[Tensor, Tensor]:
    """Four products in a row to the two outputs that they make up."""
    return (m[0] + m[1]).add_(m[2]), (m[1] - m[2]).sub_(m[3])
