"""Max RoIPool by range maxima: the bits of torchvision's `roi_pool`, several times faster on a CPU.

A bin's maximum is that of four overlapping windows whose sides are powers of two (a sparse table in two dimensions), so
pooling becomes four gathers of whole channel rows from maps that are made once per image.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RoIPool:
    """Pools RoIs of one map.

    Args:
        feature: [1,C,h,w], of any floating dtype.
        rois: f32[k,4], all the boxes that will be pooled, in pixels of the image.
        size: bins per side.
        scale: cells of the map per pixel.
        phases: p > 1 deals the bins of a RoI out to p x p maps, the first with every p-th bin of every p-th row, and so
            on: a convolution with dilation p on the whole is one without dilation on each of these. Divides `size`.
    """

    def __init__(self, feature: Tensor, rois: Tensor, size: int, scale: float, phases: int = 1):
        _, self.channels, height, width = feature.shape
        self.size, self.phases = size, phases
        low, high = _round(rois[:, :2] * scale), _round(rois[:, 2:] * scale)
        self.x, x_levels = _ranges(low[:, 0], high[:, 0], size, width)
        self.y, y_levels = _ranges(low[:, 1], high[:, 1], size, height)
        cells = feature[0].permute(1, 2, 0)
        tables = []
        for y_level in range(y_levels):
            wide = cells
            for x_level in range(x_levels):
                tables.append(wide.reshape(-1, self.channels))
                wide = _widen(wide, 1, 2**x_level)
            cells = _widen(cells, 0, 2**y_level)
        tables.append(feature.new_zeros(1, self.channels))  # what an empty bin gives
        self.tables = torch.cat(tables)
        self.width, self.cells, self.x_levels = width, height * width, x_levels

    def __call__(self, rows: slice) -> Tensor:
        """Maps [k*p*p,C,s/p,s/p] of some of the RoIs, channels last."""
        (x0, x1, x_level), (y0, y1, y_level) = (
            tuple(part[rows] for part in self.x),
            tuple(part[rows] for part in self.y),
        )
        table = (y_level[:, :, None] * self.x_levels + x_level[:, None]) * self.cells
        empty = (x_level[:, None] < 0) | (y_level[:, :, None] < 0)
        pooled, side = None, self.size // self.phases
        for y in (y0, y1):
            for x in (x0, x1):
                place = (table + y[:, :, None] * self.width + x[:, None]).masked_fill(empty, len(self.tables) - 1)
                place = place.reshape(-1, side, self.phases, side, self.phases).permute(0, 2, 4, 1, 3)
                corner = self.tables.index_select(0, place.flatten())
                pooled = corner if pooled is None else torch.maximum(pooled, corner, out=pooled)
        return pooled.reshape(-1, side, side, self.channels).permute(0, 3, 1, 2)


def _round(values: Tensor) -> Tensor:
    """Half away from zero, as C rounds; i64."""
    whole = values.trunc()
    return (whole + values.sign() * ((values - whole).abs() >= 0.5)).long()


def _ranges(low: Tensor, high: Tensor, size: int, limit: int) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """Per RoI and bin, i64[k,s]: where the two windows that cover the bin begin, and their level, which is -1 for a bin
    without cells; and how many levels there are."""
    length = (high - low + 1).clamp(min=1)
    step = length.float() / torch.tensor(float(size), device=low.device)
    bins = torch.arange(size + 1, device=low.device, dtype=torch.float32)
    begin = (torch.floor(bins[:-1] * step[:, None]).long() + low[:, None]).clamp(0, limit)
    end = (torch.ceil(bins[1:] * step[:, None]).long() + low[:, None]).clamp(0, limit)
    count = end - begin
    # the exponent of a whole number, exact where a logarithm would not be
    level = torch.where(count > 0, torch.frexp(count.clamp(min=1).double()).exponent.long() - 1, -1)
    second = end - torch.pow(2, level.clamp(min=0))
    levels = max(0, int(level.max())) + 1 if len(level) else 1
    return (begin, second, level), levels


def _widen(cells: Tensor, dim: int, step: int) -> Tensor:
    """Maxima over windows twice as long, of those over windows of `step` cells; the last ones reach no further."""
    length = cells.shape[dim]
    if step >= length:
        return cells
    shifted = cells.narrow(dim, step, length - step)
    result = cells.clone()
    torch.maximum(cells.narrow(dim, 0, length - step), shifted, out=result.narrow(dim, 0, length - step))
    return result
