"""A padded batch of region features, and the memory it lies in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from .lending import Slabs, receive, values_in
from .regions import BFLOAT16


@dataclass
class RegionBatch:
    """Regions of B images, padded to R rows with zeros. d is the feature dimension.

    Attributes:
        features: [B, R, d].
        mask: bool [B, R], True for rows that are regions (the mean region included), False for padding.
        boxes: f32 [B, R, 4], (x1, y1, x2, y2) in pixels of each image.
        locations: f32 [B, R, 4|5|7], in fractions of the image: 4 is x1, y1, x2, y2; 5 adds the area; 7 adds width,
            height and area.
        num_regions: i64 [B], number of True in each row of `mask`.
        keys: of the images.
    """

    features: Tensor
    mask: Tensor
    boxes: Tensor
    locations: Tensor
    num_regions: Tensor
    keys: list[str]
    _in_flight: torch.cuda.Event | None = field(default=None, repr=False, compare=False)
    _layout: tuple | None = field(default=None, repr=False, compare=False)  # what `empty_batch` was asked for
    _slab: Tensor | None = field(default=None, repr=False, compare=False)  # what the features lie in, if it is lent

    def __len__(self) -> int:
        return len(self.keys)

    def __reduce__(self) -> tuple:
        if self._slab is None or not _is_worker():
            return RegionBatch, (*self.tensors().values(), self.keys)
        _, *small = self.arrays.values()
        return _received, (self._slab, self.features.shape, self.features.dtype, small, self.keys)

    def tensors(self) -> dict[str, Tensor]:
        """The tensor fields by name."""
        return {name: getattr(self, name) for name in ("features", "mask", "boxes", "locations", "num_regions")}

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The tensor fields as numpy arrays of the same memory, by name."""
        return {name: _as_array(tensor) for name, tensor in self.tensors().items()}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> RegionBatch:
        """A copy on a device. A reused buffer waits until a non-blocking copy out of it is done."""
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors().items()}
        if non_blocking and moved["features"].is_cuda and not self.features.is_cuda:
            self._in_flight = torch.cuda.Event()
            self._in_flight.record(torch.cuda.current_stream(moved["features"].device))
        return RegionBatch(**moved, keys=self.keys)

    def pin_memory(self) -> RegionBatch:
        """In page-locked memory, which is copied to a GPU faster and without waiting."""
        if self.features.is_pinned():
            return self
        return RegionBatch(**{name: tensor.pin_memory() for name, tensor in self.tensors().items()}, keys=self.keys)


def empty_batch(
    images: int,
    rows: int,
    dim: int,
    num_locations: int,
    dtype: torch.dtype,
    out: RegionBatch | None = None,
    pinned: bool = False,
    slabs: Slabs | None = None,
) -> RegionBatch:
    """A batch whose values and keys are still to be written.

    Args:
        out: an earlier batch, whose memory is used again where it is large enough; itself, if it fits as it is.
        pinned: memory that is not taken from `out` is page-locked.
        slabs: of a worker, for the features, unless all of them are lent.
    """
    if out is not None and out._in_flight is not None:
        out._in_flight.synchronize()
        out._in_flight = None
    wanted = images, rows, dim, num_locations, dtype
    if out is not None and out._layout == wanted:
        return out
    layout = {
        "features": ((images, rows, dim), dtype),
        "mask": ((images, rows), torch.bool),
        "boxes": ((images, rows, 4), torch.float32),
        "locations": ((images, rows, num_locations), torch.float32),
        "num_regions": ((images,), torch.int64),
    }
    slab = slabs and slabs.lend(prod((images, rows, dim)) * dtype.itemsize)
    if slab is not None:
        tensors = {name: torch.empty(shape, dtype=kind) for name, (shape, kind) in layout.items() if name != "features"}
        return RegionBatch(values_in(slab, *layout["features"]), **tensors, keys=[], _slab=slab)
    buffers = out.tensors() if out is not None else {}
    tensors = {name: _allocate(buffers.get(name), *shape, pinned) for name, shape in layout.items()}
    return RegionBatch(**tensors, keys=[], _layout=wanted)


def _received(
    slab: Tensor, shape: torch.Size, dtype: torch.dtype, small: list[np.ndarray], keys: list[str]
) -> RegionBatch:
    """A batch of a worker, in the process that it was made for."""
    return RegionBatch(receive(slab, shape, dtype), *map(torch.from_numpy, small), keys, _slab=slab)


def _is_worker() -> bool:
    return get_worker_info() is not None


def _as_array(tensor: Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(BFLOAT16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _allocate(buffer: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> Tensor:
    if buffer is not None and buffer.shape == shape and buffer.dtype == dtype and buffer.is_contiguous():
        return buffer
    count = prod(shape)
    if buffer is not None and buffer.dtype == dtype and buffer.untyped_storage().nbytes() >= count * dtype.itemsize:
        return torch.empty(0, dtype=dtype).set_(buffer.untyped_storage(), 0, shape)
    if _is_worker():  # made where the other process can see it, it is not copied on its way
        storage = torch.UntypedStorage._new_shared(max(count, 1) * dtype.itemsize)
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape)
    return torch.empty(shape, dtype=dtype, pin_memory=pinned)
