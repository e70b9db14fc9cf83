"""Boxes and features of records in mapped shards, found again without looking them up.

A sealed record never changes. So a loader, which reads the same images epoch after epoch, looks up, checks and decodes
each of them once, and remembers in 56 bytes where its arrays lie: after that a batch costs little more than its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .regions import Regions
from .shard import SealedShard
from .store import RegionStore

_BOXES = np.dtype(np.float32)
_COLUMNS = 7  # number of the arrays in `_arrays` plus 1, width, height, n, d, place of boxes and of features in these


class BoxesAndFeatures(NamedTuple):
    """What a batch is made of: of each of several images the part of its `Regions` that is needed.

    Attributes:
        keys: of the images.
        shapes: width, height, n and d, each of all images.
        boxes: f32[4 n] of each image.
        features: [n d] of each image; float32, float16 or bfloat16.
    """

    keys: list[str]
    shapes: Sequence[Sequence[int]]
    boxes: list[np.ndarray]
    features: list[np.ndarray]

    @classmethod
    def of(cls, regions: Sequence[Regions]) -> BoxesAndFeatures:
        return cls(
            [item.key for item in regions],
            list(zip(*map(_shape, regions), strict=True)),
            [item.boxes.reshape(-1) for item in regions],
            [item.features.reshape(-1) for item in regions],
        )


def _shape(regions: Regions) -> tuple[int, int, int, int]:
    return regions.width, regions.height, *regions.features.shape


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
        self._numbers: dict[tuple[SealedShard, np.dtype], int] = {}
        self._arrays = [(np.empty(0, _BOXES), np.empty(0, _BOXES))]  # of each file: seen as boxes, seen as features

    def get_many(self, indices: Sequence[int]) -> BoxesAndFeatures:
        """What a batch is made of: read-only views, where the records are in mapped files.

        Raises: MissingKeys, CorruptRecord, StoreDamaged.
        """
        if self._generation != self._store.generation:
            self._forget()
        keys, rows = [self._keys[i] for i in indices], self._rows[indices].tolist()
        new = [place for place, row in enumerate(rows) if not row[0]]
        if new:
            regions = self._store.get_many([keys[place] for place in new], read="mmap")
            self._remember([indices[place] for place in new], regions)
            rows = self._rows[indices].tolist()
        boxes, features, arrays = [], [], self._arrays
        for number, _, _, n, d, box, feature in rows:
            as_boxes, as_features = arrays[number]
            boxes.append(as_boxes[box : box + 4 * n])
            features.append(as_features[feature : feature + n * d])
        for place, item in zip(new, regions if new else (), strict=True):
            if not rows[place][0]:
                rows[place][1:5] = _shape(item)
                boxes[place], features[place] = item.boxes.reshape(-1), item.features.reshape(-1)
        _, *shapes, _, _ = zip(*rows, strict=True)
        return BoxesAndFeatures(keys, shapes, boxes, features)

    def _remember(self, indices: Sequence[int], regions: Sequence[Regions]) -> None:
        """Where the arrays of records lie, of those that are mapped."""
        places = self._store.places([item.key for item in regions]).tolist()
        for i, place, item in zip(indices, places, regions, strict=True):
            if place[2] < 0:
                continue  # in an open shard
            shard = self._store.sealed_shard(place)
            offsets = shard.offset_of(item.boxes), shard.offset_of(item.features)
            if None in offsets:
                continue  # copies, since the record is not aligned
            dtype = item.features.dtype
            number = self._numbers.setdefault((shard, dtype), len(self._arrays))
            if number == len(self._arrays):
                self._arrays.append((shard.seen_as(_BOXES), shard.seen_as(dtype)))
            self._rows[i] = number, *_shape(item), offsets[0] // _BOXES.itemsize, offsets[1] // dtype.itemsize
