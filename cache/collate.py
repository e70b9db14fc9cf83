"""Regions of several images as one padded batch of tensors: the features that region encoders read.

Location vectors, L2 normalisation and the mean region are those of the feature reader of VOLTA (Bugliarello et al.
2021, "Multimodal pretraining unmasked"), except that nothing is divided by a norm of zero, and that truncation never
drops the mean region.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .batch import RegionBatch, empty_batch
from .errors import DataError, UsageError
from .mapped import BoxesAndFeatures
from .regions import BFLOAT16, Regions

LOCATIONS = (4, 5, 7)
GLOBAL_REGIONS = ("none", "first", "last")
DTYPES = {
    torch.float32: np.dtype(np.float32), torch.float16: np.dtype(np.float16), torch.bfloat16: BFLOAT16,
}  # fmt: skip
Item = Regions | BoxesAndFeatures
_SMALLEST_NORM = 1e-12

with warnings.catch_warnings():  # torch warns once a process about read-only arrays; here they are only copied from
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))


@dataclass(frozen=True)
class Collation:
    """How `collate_regions` makes a batch; its parameters are described there. Raises: UsageError."""

    max_regions: int | None = None
    pad_to_max: bool = False
    num_locations: int = 5
    global_region: str = "none"
    normalize: bool = False
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.max_regions is not None and self.max_regions < 1:
            raise UsageError(f"max_regions={self.max_regions} is not at least 1")
        if self.pad_to_max and self.max_regions is None:
            raise UsageError("pad_to_max needs max_regions")
        if self.num_locations not in LOCATIONS:
            raise UsageError(f"num_locations={self.num_locations!r} is not 4, 5 or 7")
        if self.global_region not in GLOBAL_REGIONS:
            raise UsageError(f"global_region={self.global_region!r} is not 'none', 'first' or 'last'")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype} is not torch.float32, torch.float16 or torch.bfloat16")

    def __call__(self, regions: Sequence[Item], out: RegionBatch | None = None, pinned: bool = False) -> RegionBatch:
        """Raises: DataError."""
        if not regions:
            raise DataError("a batch needs the regions of at least one image")
        dim = regions[0].features.shape[1]
        other = next((item for item in regions if item.features.shape[1] != dim), None)
        if other is not None:
            raise DataError(
                f"{other.key!r} has features of dimension {other.features.shape[1]}, {regions[0].key!r} of {dim}: "
                "one batch holds features of one dimension"
            )
        extra = int(self.global_region != "none")
        first = int(self.global_region == "first")
        counts = np.array([len(item.boxes) for item in regions])
        kept = counts if self.max_regions is None else np.minimum(counts, self.max_regions - extra)
        filled = kept + extra
        rows = self.max_regions if self.pad_to_max else int(filled.max())
        batch = empty_batch(len(regions), rows, dim, self.num_locations, self.dtype, out, pinned)
        batch.keys = [item.key for item in regions]
        batch.num_regions.numpy()[:] = filled
        np.less(np.arange(rows), filled[:, None], out=batch.mask.numpy())
        boxes, locations = batch.boxes.numpy(), batch.locations.numpy()
        _fill(batch.features, boxes, regions, kept.tolist(), first)
        own = batch.features[:, first : rows - extra + first]
        if self.normalize:
            _normalize(own)
        sizes = np.array([(item.width, item.height) * 2 for item in regions], np.float32)
        if extra:
            images, places = np.arange(len(regions)), np.zeros_like(kept) if first else kept
            batch.features[images, places] = self._means(own, regions, counts, kept)
            boxes[images, places] = sizes * (0, 0, 1, 1)
        _locate(locations, boxes, sizes[:, None])
        if self.normalize:
            _normalize(batch.locations)
            if extra:
                locations[images, places] = 1
                locations[images, places, :2] = 0
        return batch

    def _means(self, rows: Tensor, regions: Sequence[Item], counts: np.ndarray, kept: np.ndarray) -> Tensor:
        """The mean over all regions of each image [B, d]: over the kept ones in `rows`, and those left out."""
        sums = rows.sum(1, dtype=torch.float32)
        for i in np.flatnonzero(counts > kept):
            rest = _tensor(regions[i].features[kept[i] :]).to(torch.float32, copy=True)
            sums[i] += (_normalize(rest) if self.normalize else rest).sum(0)
        return (sums / torch.from_numpy(np.maximum(counts, 1))[:, None]).to(self.dtype)


def collate_regions(
    regions: Sequence[Item],
    *,
    max_regions: int | None = None,
    pad_to_max: bool = False,
    num_locations: int = 5,
    global_region: str = "none",
    normalize: bool = False,
    dtype: torch.dtype = torch.float32,
    out: RegionBatch | None = None,
    pinned: bool = False,
) -> RegionBatch:
    """One padded batch of the regions of several images.

    Args:
        regions: of B >= 1 images, all with features of one dimension.
        max_regions: keep at most so many rows of an image, its first ones; the mean region counts as one of them and
            is always kept. None keeps all.
        pad_to_max: R is max_regions, else it is the largest number of rows in the batch.
        num_locations: 4, 5 or 7 numbers for each location.
        global_region: "first" or "last" adds one row to each image, the mean of all its regions (before truncation);
            its box is the whole image. "none" adds none.
        normalize: divide each row of features, and each location vector but that of the mean region, by its L2 norm;
            the mean is that of the divided rows.
        dtype: of `features`: torch.float32, float16 or bfloat16. Sums are taken in float32 anyhow.
        out: an earlier batch, whose memory is used again where it is large enough; its contents are lost.
        pinned: new tensors lie in page-locked memory.

    Raises:
        DataError: no regions, or features of different dimensions.
        UsageError: an option that makes no sense.
    """
    collation = Collation(max_regions, pad_to_max, num_locations, global_region, normalize, dtype)
    return collation(regions, out, pinned)


def _fill(features: Tensor, boxes: np.ndarray, regions: Sequence[Item], kept: list[int], first: int) -> None:
    """Copy the kept rows and zero the padding; torch casts, numpy takes ten times as long for it."""
    rows, stored = features.shape[1], DTYPES[features.dtype]
    values = features.view(torch.int16).numpy().view(BFLOAT16) if stored == BFLOAT16 else features.numpy()
    if min(kept) == rows and {item.features.dtype for item in regions} == {stored}:  # nothing to pad or to cast
        np.concatenate([item.features[:rows] for item in regions], out=values.reshape(-1, values.shape[2]))
        np.concatenate([item.boxes[:rows] for item in regions], out=boxes.reshape(-1, 4))
        return
    for i, (item, count) in enumerate(zip(regions, kept, strict=True)):
        end = first + count
        boxes[i, first:end] = item.boxes[:count]
        if item.features.dtype == stored:
            values[i, first:end] = item.features[:count]
        else:
            features[i, first:end].copy_(_tensor(item.features[:count]))
        if end < rows:
            values[i, end:] = boxes[i, end:] = 0


def _locate(locations: np.ndarray, boxes: np.ndarray, sizes: np.ndarray) -> None:
    """Write the location vectors [B, R, 4|5|7] of boxes [B, R, 4] in images of sizes (w, h, w, h) [B, 1, 4]."""
    corners = np.divide(boxes, sizes, out=locations[..., :4])
    if locations.shape[2] > 4:
        extent = corners[..., 2:] - corners[..., :2]
        if locations.shape[2] == 7:
            locations[..., 4:6] = extent
        np.multiply(extent[..., 0], extent[..., 1], out=locations[..., -1])


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _normalize(rows: Tensor) -> Tensor:
    """Divide rows [..., d] by their L2 norms, in place."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
    return rows.div_(norms.clamp_(min=_SMALLEST_NORM))
