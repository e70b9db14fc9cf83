"""Shared memory that a loader's workers write batches to, and that comes back when nobody reads them any more.

Fresh shared memory costs several times what is written to it: the system clears and maps each of its pages. So a worker
keeps a few pieces. The first byte of a piece says whose it is: the worker lends it with a batch in it, and the process
that got the batch frees it when the last tensor, array or view of the features there has gone.
"""

from __future__ import annotations

import os
import weakref
from math import prod

import numpy as np
import torch
from torch import Tensor

_FREE, _LENT, _KEPT = range(3)
_HEAD = 64  # bytes before the values, which keeps these aligned

_READ: dict[int, np.ndarray] = {}  # first bytes of the pieces with a batch that this process reads


class Slabs:
    """Pieces of shared memory of one worker, `most` at once."""

    def __init__(self, most: int):
        self._most = most
        self._slabs: list[Tensor] = []

    def lend(self, size: int) -> Tensor | None:
        """A piece with room for `size` bytes, for `values_in` here and `receive` there; None while all are read."""
        slabs = [slab for slab in self._slabs if slab[0] != _KEPT]
        free = [slab for slab in slabs if slab[0] == _FREE]
        slab = next((slab for slab in free if len(slab) >= _HEAD + size), None)
        if slab is None and (free or len(slabs) < self._most):
            slabs = [other for other in slabs if not free or other is not free[0]]  # that one is too small
            room = max([_HEAD + size, *map(len, slabs)])
            slab = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(room), 0, (room,))
            slabs.append(slab)
        self._slabs = slabs
        if slab is not None:
            slab[0] = _LENT
        return slab


def values_in(slab: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The values of a piece, to be written in the worker."""
    return slab[_HEAD : _HEAD + prod(shape) * dtype.itemsize].view(dtype).view(shape)


def receive(slab: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The values of a piece, to be read in the process that got it: when they have gone, the worker has it back."""
    memory = slab.numpy()
    head, values = memory[:1], memory[_HEAD : _HEAD + prod(shape) * dtype.itemsize]
    _READ[id(head)] = head
    weakref.finalize(values, _free, id(head)).atexit = False  # torch keeps this array as long as it uses the memory
    return torch.from_numpy(values).view(dtype).view(shape)


def _free(number: int) -> None:
    head = _READ.pop(number)
    if head[0] == _LENT:
        head[0] = _FREE


def _keep_all() -> None:
    """A process that is forked off may read the batches for as long as it likes: their memory does not come back."""
    for head in list(_READ.values()):
        head[0] = _KEPT


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep_all)
