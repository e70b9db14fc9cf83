"""3x3 convolution of many small maps in float32 on a CPU, with 9 multiplications where 36 are usual.

Winograd's F(4x4, 3x3) (Lavin and Gray 2016): every 4x4 patch of the output comes from 36 products of a transformed 6x6
patch of the input. Its transforms round more than those of F(2x2, 3x3) in winograd.py, by a few times, so it is for
layers whose results are means of many numbers, as those of a region head are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Rows of the transforms with the points 0, 1, -1, 2, -2 and infinity
_INPUT = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0))
_INPUT += ((0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))
_WEIGHT = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6))
_WEIGHT += ((1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))
_OUTPUT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


class SmallMapConv(nn.Module):
    """What a 3x3 convolution with stride 1, padding 1 and no groups does.

    Args:
        conv: a float32 convolution of that kind; it is not changed.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        spread, gather = (torch.tensor(rows, dtype=torch.float64) for rows in (_INPUT, _OUTPUT))
        g = torch.tensor(_WEIGHT, dtype=torch.float64)
        weight = torch.einsum("ia,ocab,jb->ijco", g, conv.weight.double(), g).flatten(0, 1)
        self.register_buffer("weight", weight.float().contiguous())  # [36, inputs, outputs]
        self.register_buffer("spread", torch.kron(spread, spread).float())  # [36, 36]
        self.register_buffer("gather", torch.kron(gather, gather).float())  # [16, 36]
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,h,w] to [B,O,h,w], channels last."""
        batch, channels, height, width = x.shape
        rows, columns = -(-height // 4), -(-width // 4)
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1 + 4 * columns - width, 1, 1 + 4 * rows - height))
        down, across = padded.stride(1), padded.stride(2)
        patches = padded.as_strided(
            (6, 6, batch, rows, columns, channels), (down, across, padded.stride(0), 4 * down, 4 * across, 1)
        ).reshape(36, -1)
        spread = (self.spread @ patches).view(36, -1, channels)
        products = torch.bmm(spread, self.weight)
        result = (self.gather @ products.flatten(1)).view(4, 4, batch, rows, columns, -1)
        if self.bias is not None:
            result = result.add_(self.bias)
        result = result.permute(2, 3, 0, 4, 1, 5).reshape(batch, 4 * rows, 4 * columns, -1)[:, :height, :width]
        return result.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
