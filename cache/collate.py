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
from .errors import DataError, UsageError, require_one_of, require_whole
from .lending import Slabs
from .mapped import BoxesAndFeatures
from .regions import BFLOAT16, Regions

LOCATIONS = (4, 5, 6, 7)
GLOBAL_REGIONS = ("none", "first", "last")
DTYPES = torch.float32, torch.float16, torch.bfloat16
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
        if self.max_regions is not None:
            require_whole("max_regions", self.max_regions, 1)
        if self.pad_to_max and self.max_regions is None:
            raise UsageError("pad_to_max needs max_regions")
        if not isinstance(self.num_locations, int) or self.num_locations not in LOCATIONS:
            raise UsageError(f"num_locations={self.num_locations!r} is not 4, 5, 6 or 7")
        require_one_of("global_region", self.global_region, GLOBAL_REGIONS)
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype} is not torch.float32, torch.float16 or torch.bfloat16")

    def __call__(self, images: Sequence[Regions] | BoxesAndFeatures, out: RegionBatch | None = None,
                 pinned: bool = False, slabs: Slabs | None = None) -> RegionBatch:  # fmt: skip
        """Raises: DataError."""
        if not isinstance(images, BoxesAndFeatures):
            images = BoxesAndFeatures.of(images)
        if not images.keys:
            raise DataError("a batch needs the regions of at least one image")
        widths, heights, counts, dims = images.shapes
        if min(dims) != max(dims):
            other = next(i for i, dim in enumerate(dims) if dim != dims[0])
            raise DataError(
                f"{images.keys[other]!r} has features of dimension {dims[other]}, {images.keys[0]!r} of {dims[0]}: "
                "one batch holds features of one dimension"
            )
        extra = int(self.global_region != "none")
        first = int(self.global_region == "first")
        kept, most = counts, max(counts)
        if self.max_regions is not None and most + extra > self.max_regions:
            most = self.max_regions - extra
            kept = [min(count, most) for count in counts]
        rows = self.max_regions if self.pad_to_max else most + extra
        batch = empty_batch(len(counts), rows, dims[0], self.num_locations, self.dtype, out, pinned, slabs)
        batch.keys = images.keys
        filled, boxes, locations = (batch.arrays[name] for name in ("num_regions", "boxes", "locations"))
        filled[:] = [count + extra for count in kept] if extra else kept
        np.less(np.arange(rows), filled[:, None], out=batch.arrays["mask"])
        sizes = np.array((widths, heights), np.float32).T
        whole = not extra and min(counts) == max(counts) == rows  # nothing to pad and nothing to leave out
        _fill(batch, "boxes", images.boxes, kept, first, whole)
        if extra:
            each, places = np.arange(len(counts)), 0 if first else kept
            boxes[each, places, :2] = 0
            boxes[each, places, 2:] = sizes
        _locate(locations, boxes, sizes)
        if self.normalize:
            _normalize(batch.locations)
            if extra:
                locations[each, places] = 1
                locations[each, places, :2] = 0
        _fill(batch, "features", images.features, kept, first, whole)
        if extra or self.normalize:
            own = batch.features[:, first : rows - extra + first]
        if self.normalize:
            _normalize(own)
        if extra:
            batch.features[each, places] = self._means(own, images, kept)
        return batch

    def _means(self, rows: Tensor, images: BoxesAndFeatures, kept: Sequence[int]) -> Tensor:
        """The mean over all regions of each image [B, d]: over the kept ones in `rows`, and those left out."""
        sums, counts = rows.sum(1, dtype=torch.float32), images.shapes[2]
        for i, (count, own) in enumerate(zip(counts, kept, strict=True)):
            if count > own:
                rest = _tensor(images.features[i].reshape(count, -1)[own:]).to(torch.float32, copy=True)
                sums[i] += (_normalize(rest) if self.normalize else rest).sum(0)
        return (sums / torch.tensor(counts).clamp_(min=1)[:, None]).to(self.dtype)


def collate_regions(
    regions: Sequence[Regions] | BoxesAndFeatures,
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
        num_locations: 4 numbers for each location, corners as fractions of the image size; 5: and the area; 6: and
            width and height; 7: and all three. `torch.cat((features, locations), -1)` with 6 is what OSCAR+ (VinVL)
            reads.
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


def _fill(
    batch: RegionBatch, name: str, arrays: Sequence[np.ndarray], kept: Sequence[int], first: int, whole: bool
) -> None:
    """Copy the kept rows of each image to a field [B, R, k] and zero the padding; torch casts, numpy takes ten times
    as long for it.
    """
    values = batch.arrays[name]
    if whole and {array.dtype for array in arrays} == {values.dtype}:
        np.concatenate(arrays, out=values.reshape(-1))
        return
    tensor, width = getattr(batch, name).flatten(1), values.shape[2]
    values, start = values.reshape(len(values), -1), first * width
    for i, (array, count) in enumerate(zip(arrays, kept, strict=True)):
        end = start + count * width
        if array.dtype == values.dtype:
            values[i, start:end] = array[: end - start]
        else:
            tensor[i, start:end].copy_(_tensor(array[: end - start]))
        values[i, end:] = 0


def _locate(locations: np.ndarray, boxes: np.ndarray, sizes: np.ndarray) -> None:
    """Write the location vectors [B, R, 4|5|6|7] of boxes [B, R, 4] in images of sizes (w, h) [B, 2].

    One number of all vectors at a time: numpy is slow where the last dimension is short.
    """
    x1, y1, x2, y2 = (
        np.divide(boxes[..., i], sizes[:, i % 2, None], out=locations[..., i]) for i in range(4)
    )  # fmt: skip
    if locations.shape[2] > 4:
        width, height = x2 - x1, y2 - y1
        if locations.shape[2] > 5:
            locations[..., 4], locations[..., 5] = width, height
        if locations.shape[2] != 6:
            np.multiply(width, height, out=locations[..., -1])


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _normalize(rows: Tensor) -> Tensor:
    """Divide rows [..., d] by their L2 norms, in place."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
    return rows.div_(norms.clamp_(min=_SMALLEST_NORM))
