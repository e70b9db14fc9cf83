"""Where every key of one or more sealed shards lies: parallel arrays sorted by xxh3-64 of the key, memory-mapped.

    header   64 bytes   magic, version, number of entries, of covered shards, of key bytes, checksum of the whole file
    covers   16 bytes a shard: its number and the checksum of its own .idx (index.idx covers many, shard-N.idx only N)
    columns  hash, offset, checksum, key_offset u64 · length, shard u32 · key_length u16 · flags u8
    heap     the keys, utf-8

A key occurs once in an index.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from .errors import StoreDamaged
from .files import disk_errors, replace_file
from .states import FAILURE, overrides

FILE = "index.idx"
_MAGIC = b"RVIX"
_VERSION = 1
_HEADER = struct.Struct("<4sIQQQQ24x")
HEADER_BYTES = _HEADER.size
_COVER = np.dtype([("number", "<u8"), ("checksum", "<u8")])
_COLUMNS = (
    ("hash", "<u8"), ("offset", "<u8"), ("checksum", "<u8"), ("key_offset", "<u8"), ("length", "<u4"),
    ("shard", "<u4"), ("key_length", "<u2"), ("flags", "u1"),
)  # fmt: skip
_LARGE = 1 << 26  # bytes of a file whose checksum takes longer than what it is opened for
_ENTRY_BYTES = sum(np.dtype(dtype).itemsize for _, dtype in _COLUMNS)


class Entry(NamedTuple):
    """One state: where its value (a record, or the JSON of a failure) lies in a shard file."""

    shard: int
    offset: int
    length: int
    checksum: int  # xxh3-64 of the value
    flags: int

    @property
    def content(self) -> tuple[int, int]:
        """Equal for equal values."""
        return self.length, self.checksum


def hash_keys(keys: Sequence[bytes]) -> np.ndarray:
    """xxh3-64 of each key, u64[len(keys)]."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))


class Index:
    """The states of the keys of one or more shards, one for each key.

    Attributes:
        covers: shard number -> checksum of that shard's own index.
        checksum: xxh3-64 of the file, as an int.
        columns: name -> array, all of one length, sorted by `hash`.
        path: of the file, or of the store whose files were merged; None when there is none.
    """

    path: Path | None = None
    _unconfirmed: memoryview | None = None  # the file, until its checksum is compared

    def __init__(self, covers: dict[int, int], columns: dict[str, np.ndarray], heap, checksum: int = 0):
        self.covers, self.columns, self.heap, self.checksum = covers, columns, heap, checksum
        self._hash = columns["hash"]

    def __len__(self) -> int:
        return len(self._hash)

    @classmethod
    def build(cls, states: Iterable[tuple[bytes, Entry]], covers: dict[int, int] | None = None) -> Index:
        """From (key, entry) pairs with distinct keys."""
        states = list(states)
        keys = [key for key, _ in states]
        lengths = np.fromiter(map(len, keys), np.uint64, len(keys))
        values = np.array([entry for _, entry in states], np.uint64).reshape(-1, len(Entry._fields))
        columns = dict(zip(Entry._fields, values.T, strict=True))
        columns |= {"hash": hash_keys(keys), "key_length": lengths, "key_offset": np.cumsum(lengths) - lengths}
        order = np.argsort(columns["hash"], kind="stable")
        return cls(covers or {}, {n: columns[n][order].astype(t) for n, t in _COLUMNS}, b"".join(keys))

    @classmethod
    def merge(cls, indexes: Sequence[Index]) -> Index:
        """One state for each key of several indexes, given in the order of their shards."""
        if not indexes:
            return cls.build([])
        heap_starts = np.cumsum([0, *(len(index.heap) for index in indexes)])
        columns = {name: np.concatenate([i.columns[name] for i in indexes]) for name, _ in _COLUMNS}
        level = np.repeat(np.arange(len(indexes)), [len(index) for index in indexes])
        columns["key_offset"] += heap_starts[level].astype(np.uint64)
        heap = b"".join(index.heap for index in indexes)
        order = np.lexsort((level, columns["hash"]))
        merged = cls(
            {number: checksum for index in indexes for number, checksum in index.covers.items()},
            {name: column[order] for name, column in columns.items()},
            heap,
        )
        kept = merged._overridden()
        if kept is not None:
            merged = cls(merged.covers, {name: column[kept] for name, column in merged.columns.items()}, heap)
        merged.path = indexes[0].path and indexes[0].path.parent
        return merged

    def renumbered(self, number: int) -> Index:
        """The index of a single shard, as that of shard `number`."""
        return Index({}, {**self.columns, "shard": np.full(len(self), number, "<u4")}, self.heap)

    def _overridden(self) -> np.ndarray | None:
        """Which entries hold, where equal keys follow each other in the order of their shards; None for all."""
        same = self._hash[1:] == self._hash[:-1]
        if not same.any():
            return None
        kept = np.ones(len(self), bool)
        flags = self.columns["flags"]
        in_run = np.flatnonzero(np.concatenate([same, [False]]) | np.concatenate([[False], same]))
        holds: dict[bytes, int] = {}
        for i in in_run.tolist():
            earlier = holds.setdefault(self.key(i), i)
            if earlier != i:
                loser = earlier if overrides(int(flags[earlier]), int(flags[i])) else i
                kept[loser] = False
                if loser == earlier:
                    holds[self.key(i)] = i
        return kept

    def save(self, path: Path) -> int:
        """Write the file durably; returns its checksum. Raises: DiskError."""
        covers = np.array(sorted(self.covers.items()), np.uint64).reshape(-1, 2)
        parts = [covers.astype("<u8").tobytes(), *(self.columns[name].tobytes() for name, _ in _COLUMNS), self.heap]
        header = [_MAGIC, _VERSION, len(self), len(covers), len(self.heap), 0]
        header[-1] = self.checksum = _digest(_HEADER.pack(*header), *parts)
        replace_file(path, _HEADER.pack(*header), *parts)
        return self.checksum

    @classmethod
    def open(cls, path: Path, check: bool = True, put_off: bool = False) -> Index:
        """Map an index file.

        Args:
            check: compare the checksum too, which reads the whole file once.
            put_off: in a large file, do so only when it is first asked for all keys, or for one that it does not have:
                a key that is found proves itself, since its bytes are compared and its record has its own checksum.

        Raises:
            StoreDamaged: the file is missing, cut, altered or of an unknown version.
        """
        try:
            with disk_errors(path), open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < _HEADER.size:
                    raise _damaged(path, f"{size} bytes are fewer than the header of an index")
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            raise _damaged(path, "the index is missing") from None
        except IsADirectoryError:
            raise _damaged(path, "it is a directory") from None
        magic, version, count, shards, heap, checksum = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise _damaged(path, f"it is not an index of version {_VERSION}, the one this roivault reads")
        expected = promised_size(data[: _HEADER.size])
        if expected != size:
            raise _damaged(path, f"it has {size} bytes, its header promises {expected}")
        start = _HEADER.size
        covers = np.frombuffer(data, _COVER, shards, start)
        start += covers.nbytes
        columns = {}
        for name, dtype in _COLUMNS:
            columns[name] = np.frombuffer(data, dtype, count, start)
            start += columns[name].nbytes
        index = cls(dict(covers.tolist()), columns, data[start:], checksum)
        index.path, index._unconfirmed = path, data if check else None
        if not put_off or size < _LARGE:
            index._confirm()
        return index

    def _confirm(self) -> None:
        """Compare the checksum of the file, if that is still to be done. Raises: StoreDamaged."""
        data = self._unconfirmed
        if data is not None:
            header = _HEADER.unpack_from(data)
            unsigned = _HEADER.pack(*header[:-1], 0)
            if data[: _HEADER.size] != _HEADER.pack(*header) or (
                _digest(unsigned, data[_HEADER.size :]) != self.checksum
            ):
                raise _damaged(self.path, "its checksum is wrong")
            self._unconfirmed = None

    def key(self, position: int) -> bytes:
        start = int(self.columns["key_offset"][position])
        return bytes(self.heap[start : start + int(self.columns["key_length"][position])])

    def text(self, key: bytes) -> str:
        """A key of this index. Raises: StoreDamaged: no writer made it."""
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise _damaged(self.path, f"it holds {key!r}, which is no key: it is not utf-8") from None

    def entry(self, position: int) -> Entry:
        return Entry(*(int(self.columns[name][position]) for name in Entry._fields))

    def find(self, keys: Sequence[bytes], hashes: np.ndarray) -> Iterator[tuple[int, Entry]]:
        """(place in `keys`, entry) of each of the keys that is here; `hashes` is hash_keys(keys)."""
        places, positions = self.match(keys, hashes)
        rows = (self.columns[name][positions].tolist() for name in Entry._fields)
        return zip(places.tolist(), map(Entry, *rows), strict=True)

    def match(self, keys: Sequence[bytes], hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`find` for many keys: places in `keys`, and in the columns, of the keys that are here."""
        if not len(self):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        positions = np.minimum(np.searchsorted(self._hash, hashes), len(self) - 1)
        places = np.flatnonzero(self._hash[positions] == hashes)
        positions = positions[places]
        starts, lengths = (self.columns[name][positions].tolist() for name in ("key_offset", "key_length"))
        wanted, heap = [keys[place] for place in places.tolist()], self.heap
        spans = zip(starts, lengths, wanted, strict=True)
        same = np.array([bytes(heap[start : start + length]) == key for start, length, key in spans], bool)
        for i in np.flatnonzero(~same).tolist():  # two keys with one hash lie next to each other
            for position in range(int(positions[i]) + 1, len(self)):
                if self._hash[position] != hashes[places[i]]:
                    break
                if self.key(position) == wanted[i]:
                    positions[i], same[i] = position, True
                    break
        if not same.all():
            places, positions = places[same], positions[same]
        if len(places) < len(keys):
            self._confirm()
        return places, positions

    def states(self) -> Iterator[tuple[bytes, Entry]]:
        """(key, entry) of every state in storage order: by shard, then by place in the shard. Raises: StoreDamaged."""
        self._confirm()
        order = np.lexsort((self.columns["offset"], self.columns["shard"]))
        for first in range(0, len(order), 65536):
            chunk = order[first : first + 65536]
            rows = (self.columns[name][chunk].tolist() for name in ("key_offset", "key_length", *Entry._fields))
            for start, length, *entry in zip(*rows, strict=True):
                yield bytes(self.heap[start : start + length]), Entry(*entry)

    @property
    def failures(self) -> int:
        """Raises: StoreDamaged."""
        self._confirm()
        return int(np.count_nonzero(self.columns["flags"] & FAILURE))

    @property
    def records(self) -> int:
        return len(self) - self.failures


def _damaged(path: Path | None, why: str) -> StoreDamaged:
    if path is not None and path.name == FILE:
        return StoreDamaged(path, why, "delete it: it holds nothing that the shards' own indexes do not")
    return StoreDamaged(path or "an index in memory", why)


def promised_size(header: bytes | memoryview) -> int:
    """Bytes of the index that has this header; 0 if it is none."""
    if len(header) != _HEADER.size:
        return 0
    magic, _, count, shards, heap, _ = _HEADER.unpack(header)
    return _HEADER.size + shards * _COVER.itemsize + count * _ENTRY_BYTES + heap if magic == _MAGIC else 0


def _digest(*parts) -> int:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()
