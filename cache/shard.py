"""Sealing an open shard, and reading a sealed one without LMDB."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import xxhash

from .environment import Environment, View
from .errors import StoreDamaged, StoreNotFound
from .files import disk_errors, no_room_to_map, sync_file
from .index import Entry, Index
from .manifest import Shard
from .record import aligned_memory

_CHUNK = 16 << 20
_BLOCK = 2048  # no two records of a shard start in one block of this size, since none is smaller
_MAPPED: WeakValueDictionary[tuple, SealedShard] = WeakValueDictionary()


def seal(store: Path, shard: Shard, environment: Environment) -> Shard:
    """Make an open shard immutable: find every value's place in the file, write the index, checksum the file.

    `environment` is closed for all its users. Interrupted anywhere, it can be done again.

    Raises: DiskError: the shard stays open.
    """
    path = store / shard.file
    with disk_errors(path):
        entries = _locate_values(path, shard.number, environment)
        size = environment.data_size()
        environment.retire()
        sync_file(path, size)
        return sealed(store, shard, Index.build(entries), file_checksum(path))


def sealed(store: Path, shard: Shard, index: Index, checksum: int) -> Shard:
    """Write the index of a shard whose file is complete; returns the shard as sealed. Raises: DiskError."""
    index.covers[shard.number] = index_checksum = index.save(store / shard.index_file)
    return replace(
        shard,
        state="sealed",
        records=index.records,
        failures=index.failures,
        bytes=os.path.getsize(store / shard.file),
        checksum=f"{checksum:016x}",
        index_bytes=os.path.getsize(store / shard.index_file),
        index_checksum=f"{index_checksum:016x}",
    )


def _locate_values(path: Path, number: int, environment: Environment) -> list[tuple[bytes, Entry]]:
    """Where each value lies in the file: its address in LMDB's map less the address of the map.

    LMDB does not tell the latter. So the value with the lowest address is looked for in the file, at the same place in
    a page, which gives a candidate; it is right if every value reads back equal through it.
    """
    with environment.read() as view, open(path, "rb") as file:
        values = []
        for key, flags in view.keys():
            value = view.value(key, flags)
            checksum = xxhash.xxh3_64_intdigest(value)
            values.append((key, _address(value), Entry(number, 0, len(value), checksum, flags)))
        if not values:
            return []
        for base in _candidate_bases(file.fileno(), view, values):
            located = [(key, entry._replace(offset=address - base)) for key, address, entry in values]
            if all(_reads_back(file.fileno(), entry) for _, entry in located):
                return located
    raise StoreDamaged(path, "what LMDB reads is not what the file holds")


def _reads_back(fd: int, entry: Entry) -> bool:
    return xxhash.xxh3_64_intdigest(os.pread(fd, entry.length, entry.offset)) == entry.checksum


def _candidate_bases(fd: int, view: View, values: list[tuple[bytes, int, Entry]]) -> Iterator[int]:
    key, address, entry = min(values, key=lambda value: value[1])
    head = bytes(view.value(key, entry.flags)[:64])
    for offset in range(address % mmap.PAGESIZE, os.fstat(fd).st_size, mmap.PAGESIZE):
        if os.pread(fd, len(head), offset) == head:
            yield address - offset


def _address(value: memoryview) -> int:
    return np.frombuffer(value, np.uint8).__array_interface__["data"][0]


def file_checksum(path: Path) -> int:
    """xxh3-64 of a whole file."""
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.intdigest()


def _missing(path: Path) -> StoreDamaged | StoreNotFound:
    if path.parent.is_dir():
        return StoreDamaged(path, "the shard is missing")
    return StoreNotFound(
        f"{path.parent} is not there any more: it was moved, renamed or unmounted; open the store where it is now"
    )


class SealedShard:
    """A sealed shard file, mapped once per process. Views of it keep the mapping alive.

    Attributes:
        view: of the whole file.
    """

    def __init__(self, path: Path, shard: Shard):
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.bytes:
                raise StoreDamaged(path, f"it has {size} bytes, the manifest says {shard.bytes}")
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                raise no_room_to_map(path) from error
        self.path = path
        self.view = memoryview(self._map)
        self._verified = bytearray(size // _BLOCK + 1)

    @classmethod
    def shared(cls, path: Path, shard: Shard) -> SealedShard:
        """The mapping of this process for a shard.

        Raises:
            StoreNotFound: its store has gone.
            StoreDamaged: missing, or not as long as it should be.
            DiskError: it cannot be mapped into memory.
        """
        try:
            key = (os.path.realpath(path), os.stat(path).st_ino, shard.checksum)
        except FileNotFoundError:
            raise _missing(path) from None
        mapped = _MAPPED.get(key)
        if mapped is None:
            mapped = _MAPPED[key] = cls(path, shard)
        return mapped

    @cached_property
    def _fd(self) -> int:
        """To read with, apart from the mapping: advice on how a file is read is for all that share its opening."""
        with disk_errors(self.path):
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise _missing(self.path) from None
            weakref.finalize(self, os.close, fd)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd

    def value(self, entry: Entry) -> memoryview:
        """A view of the mapped file. Raises: StoreDamaged."""
        self._refuse_outside(entry)
        return self.view[entry.offset : entry.offset + entry.length]

    def _refuse_outside(self, entry: Entry) -> None:
        end = entry.offset + entry.length
        if end > len(self.view):
            raise StoreDamaged(self.path, f"its index points to {end}, behind the end of the file")

    def read(self, entry: Entry) -> memoryview:
        """The value in memory of its own, read from the file and nothing around it. Raises: StoreDamaged, DiskError."""
        self._refuse_outside(entry)
        memory = aligned_memory(entry.length, entry.offset)
        done = 0
        with disk_errors(self.path):
            while done < entry.length:
                count = os.preadv(self._fd, [memory[done:]], entry.offset + done)
                if not count:
                    raise StoreDamaged(self.path, f"it was cut to {os.fstat(self._fd).st_size} bytes")
                done += count
        return memoryview(memory).toreadonly()

    def offset_of(self, array: np.ndarray) -> int | None:
        """Where in the file an array lies; None if it is not a view of it."""
        offset = array.__array_interface__["data"][0] - _address(self.view) if array.size else 0
        return offset if 0 <= offset < len(self.view) else None

    def seen_as(self, dtype: np.dtype) -> np.ndarray:
        """The whole file as an array of numbers, the last bytes left out if they do not make one."""
        return np.frombuffer(self.view, dtype, len(self.view) // dtype.itemsize)

    def is_new(self, entry: Entry) -> bool:
        """Whether this process has not compared the checksum of the record yet. Raises: StoreDamaged."""
        self._refuse_outside(entry)
        return not self._verified[entry.offset // _BLOCK]

    def mark(self, entry: Entry) -> None:
        """Note that it has. Raises: StoreDamaged."""
        self._refuse_outside(entry)
        self._verified[entry.offset // _BLOCK] = 1

    def prefetch(self, entry: Entry) -> None:
        """Ask the system to read the value ahead. Raises: StoreDamaged."""
        self._refuse_outside(entry)
        start = entry.offset - entry.offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, entry.offset + entry.length - start)
