"""Boxes and features of records in mapped shards, found again without looking them up.

A sealed record never changes. So a loader, which reads the same images epoch after epoch, looks up, checks and decodes
each of them once, and remembers in 64 bytes where its arrays lie: after that a batch costs little more than its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .regions import FEATURE_DTYPES, Regions
from .shard import SealedShard
from .store import RegionStore

_BOXES = np.dtype(np.float32)
_DTYPES = tuple(FEATURE_DTYPES.values())
_COLUMNS = 8  # number of the shard in `_shards` plus 1, dtype, width, height, n, d, offset of boxes, of features


class BoxesAndFeatures(NamedTuple):
    """The part of `Regions` that batches are made of; the same names, shapes and dtypes."""

    key: str
    width: int
    height: int
    boxes: np.ndarray
    features: np.ndarray


class MappedRecords:
    """Some images of a store, by their place in a list of keys.

    What was read stays as it was, as in any snapshot of the store, until the store is refreshed.
    """

    def __init__(self, store: RegionStore, keys: Sequence[str]):
        self._store, self._keys = store, keys
        self._forget()

    def __reduce__(self) -> tuple:
        return MappedRecords, (self._store, self._keys)

    def _forget(self) -> None:
        self._generation = self._store.generation
        self._rows = np.zeros((len(self._keys), _COLUMNS), np.int64)
        self._shards: list[SealedShard] = []

    def get_many(self, indices: Sequence[int]) -> list[Regions | BoxesAndFeatures]:
        """What a batch is made of.

        Raises: MissingKeys, CorruptRecord, StoreDamaged.
        """
        if self._generation != self._store.generation:
            self._forget()
        rows = self._rows[indices]
        found = dict(self._look_up(indices, np.flatnonzero(rows[:, 0] == 0).tolist()))
        views = [None, *(shard.view for shard in self._shards)]
        return [
            found[place] if not shard else BoxesAndFeatures(
                self._keys[i], width, height, np.ndarray((n, 4), _BOXES, views[shard], boxes),
                np.ndarray((n, d), _DTYPES[dtype], views[shard], features),
            )
            for place, (i, (shard, dtype, width, height, n, d, boxes, features)) in enumerate(
                zip(indices, rows.tolist(), strict=True)
            )
        ]  # fmt: skip

    def _look_up(self, indices: Sequence[int], places: list[int]) -> Iterator[tuple[int, Regions]]:
        """(place, regions) of the images at some places of `indices`, which are remembered if they can be."""
        if places:
            new = [indices[place] for place in places]
            keys = [self._keys[i] for i in new]
            regions = self._store.get_many(keys, read="mmap")
            self._remember(new, keys, regions)
            yield from zip(places, regions, strict=True)

    def _remember(self, indices: Sequence[int], keys: Sequence[str], regions: Sequence[Regions]) -> None:
        for i, place, item in zip(indices, self._store.places(keys).tolist(), regions, strict=True):
            if place[2] < 0:
                continue  # in an open shard
            shard = self._store.sealed_shard(place)
            offsets = shard.offset_of(item.boxes), shard.offset_of(item.features)
            if None in offsets:
                continue  # copies, since the record is not aligned
            if shard not in self._shards:
                self._shards.append(shard)
            numbers = self._shards.index(shard) + 1, _DTYPES.index(item.features.dtype)
            self._rows[i] = *numbers, item.width, item.height, *item.features.shape, *offsets
