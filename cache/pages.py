"""The pages of an LMDB file, read without LMDB: a damaged file may kill a process that opens it.

What these files have of LMDB 0.9 on a 64-bit little-endian machine:

    page   header: its number u64, unused u16, flags u16, end of the places u16, start of the nodes u16; then one u16
           a node, its place in the page
    node   size of the value u32, flags u16, size of the key u16, key; then the value, or where it has pages of its own
           (flag BIG) the number of the first of them u64; in a branch the first three u16 are the number of a page
    meta   pages 0 and 1, the one with the higher transaction counts: magic, version, 16 unused bytes, the trees of free
           pages and of named databases, last page u64, transaction u64
    tree   48 bytes, the last two u64 of them the number of nodes and of the root page

A page is current if it is not among the free ones. So all nodes of the last commit are found by looking at every page,
also where the branch above a page is damaged.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .environment import DATABASES

_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<II16x48s48sQQ")
_TREE = struct.Struct("<I28xQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _KINDS = 1, 2, 0x0F
_BIG, _SUBTREE = 1, 2
_NO_PAGE = (1 << 64) - 1
_CHUNK_PAGES = 4096
_MAX_DEPTH = 32


class Node(NamedTuple):
    """A key, and where in the file its value lies, as the page says: neither was looked at."""

    key: bytes
    offset: int
    length: int


@dataclass
class PageContents:
    """What the pages of a file hold.

    Attributes:
        nodes: of all named databases together, in no order; those of one key follow each other in no order either.
        certain: the nodes are those of the last commit, as far as they can be read; else some may be older.
        whole: no page of the last commit is unreadable.
        entries: nodes that the last commit had in each named database, where that can be read.
    """

    nodes: list[Node] = field(default_factory=list)
    certain: bool = False
    whole: bool = False
    entries: dict[bytes, int] = field(default_factory=dict)


def read_pages(path: Path) -> PageContents:
    """Whatever the bytes of the file are, this ends. Raises: FileNotFoundError."""
    with open(path, "rb") as file:
        return _Pages(file.fileno()).contents()


class _BadPage(Exception):
    pass


class _Found(NamedTuple):
    """A node: its value starts at `offset` in its page, or `elsewhere` in the file."""

    key: bytes
    flags: int
    offset: int
    elsewhere: int | None
    length: int


class _Pages:
    def __init__(self, fd: int):
        self._fd = fd
        self._file_size = os.fstat(fd).st_size
        self._size, self._trees, self._end = mmap.PAGESIZE, None, _NO_PAGE
        metas = [meta for meta in map(self._meta, range(2)) if meta]
        if len(metas) == 2:  # of a single one nobody knows whether it is the last
            _, self._trees, self._end = max(metas)

    def _meta(self, number: int) -> tuple[int, tuple, int] | None:
        """Transaction, trees, and the end of the pages; None if the page is no meta page."""
        data = _read(self._fd, _META.size, number * self._size + _HEADER.size)
        if len(data) < _META.size:
            return None
        magic, version, *trees, last, transaction = _META.unpack(data)
        size = _TREE.unpack(trees[0])[0]
        if (magic, version) != (_MAGIC, _VERSION) or size.bit_count() != 1 or not 512 <= size <= 65536:
            return None
        self._size = size
        return transaction, tuple(_TREE.unpack(tree)[1:] for tree in trees), last + 1

    def contents(self) -> PageContents:
        result = PageContents()
        free, skipped = self._free_pages()
        result.certain = free is not None
        leaves = set()
        for number, page in self._leaves():
            if number >= self._end or number in (free or ()) or number in skipped:
                continue
            try:
                nodes, sound = self._nodes(page)
            except _BadPage:
                continue
            if sound and all(one.key < other.key for one, other in pairwise(nodes)):
                leaves.add(number)
            result.nodes += [
                Node(node.key, self._start(number, node), node.length) for node in nodes if not node.flags & _SUBTREE
            ]
        if result.certain:
            result.whole = self._check_trees(result.entries, leaves)
        return result

    def _free_pages(self) -> tuple[set[int] | None, set[int]]:
        """Pages that the last commit does not use, None if that cannot be told; and those that say so."""
        if self._trees is None:
            return None, set()
        free, holders = set(), set()
        try:
            for number, page in self._walk(self._trees[0][1]):
                holders.add(number)
                for node in self._all_nodes(page):
                    data = _read(self._fd, node.length, self._start(number, node))
                    ids = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
                    if len(data) != node.length or not len(ids) or ids[0] >= len(ids):
                        raise _BadPage
                    free.update(ids[1 : 1 + int(ids[0])].tolist())
        except _BadPage:
            return None, set()
        return free, holders

    def _check_trees(self, entries: dict[bytes, int], leaves: set[int]) -> bool:
        """Fill in how many nodes each named database has; returns whether all of them can be reached."""
        try:
            roots = {}
            for number, page in self._walk(self._trees[1][1]):
                for node in self._all_nodes(page):
                    tree = _read(self._fd, node.length, self._start(number, node))
                    if not node.flags & _SUBTREE or len(tree) != _TREE.size:
                        raise _BadPage
                    _, entries[node.key], roots[node.key] = _TREE.unpack(tree)
            for key, root in roots.items():
                found = 0
                for number, page in self._walk(root):
                    if number not in leaves:
                        raise _BadPage
                    found += len(self._all_nodes(page))
                if found != entries[key]:
                    raise _BadPage
        except _BadPage:
            return False
        return set(DATABASES) <= set(roots)

    def _leaves(self) -> Iterator[tuple[int, bytes]]:
        """(number, page) of everything that looks like a leaf, current or not."""
        for first in range(0, -(-self._file_size // self._size), _CHUNK_PAGES):
            data = _read(self._fd, _CHUNK_PAGES * self._size, first * self._size)
            pages = np.frombuffer(data, np.uint8, len(data) // self._size * self._size).reshape(-1, self._size)
            numbers = np.ascontiguousarray(pages[:, :8]).view("<u8")[:, 0]
            flags = np.ascontiguousarray(pages[:, 10:12]).view("<u2")[:, 0]
            own = np.arange(first, first + len(pages), dtype=np.uint64)
            for i in np.flatnonzero((numbers == own) & (flags & _KINDS == _LEAF)).tolist():
                yield first + i, pages[i].tobytes()

    def _walk(self, root: int) -> Iterator[tuple[int, bytes]]:
        """(number, page) of the leaves of a tree. Raises: _BadPage."""
        waiting, seen = [] if root == _NO_PAGE else [(root, 0)], set()
        while waiting:
            number, depth = waiting.pop()
            page = _read(self._fd, self._size, number * self._size) if number < self._end else b""
            if len(page) < self._size or number in seen or depth > _MAX_DEPTH:
                raise _BadPage
            seen.add(number)
            own, _, flags, _, _ = _HEADER.unpack_from(page)
            if own != number or flags & _KINDS not in (_BRANCH, _LEAF):
                raise _BadPage
            if flags & _LEAF:
                yield number, page
            else:
                places = self._places(page)
                if not all(places):
                    raise _BadPage
                nodes = (_NODE.unpack_from(page, place) for place in places)
                waiting += [(low | high << 16 | top << 32, depth + 1) for low, high, top, _ in nodes]

    def _all_nodes(self, page: bytes) -> list[_Found]:
        """Raises: _BadPage: not all can be read."""
        nodes, sound = self._nodes(page)
        if not sound:
            raise _BadPage
        return nodes

    def _start(self, number: int, node: _Found) -> int:
        """Where in the file the value of a node of a page is."""
        return number * self._size + node.offset if node.elsewhere is None else node.elsewhere

    def _places(self, page: bytes) -> tuple[int, ...]:
        """Where the nodes of a page are, those that cannot be left out; 0 in their stead. Raises: _BadPage."""
        lower, upper = _HEADER.unpack_from(page)[3:]
        if not _HEADER.size <= lower <= upper <= self._size or lower % 2:
            raise _BadPage
        places = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", page, _HEADER.size)
        return tuple(place if upper <= place <= self._size - _NODE.size else 0 for place in places)

    def _nodes(self, page: bytes) -> tuple[list[_Found], bool]:
        """The nodes of a leaf that can be read, and whether those are all. Raises: _BadPage: none can."""
        found, places = [], self._places(page)
        for place in filter(None, places):
            low, high, flags, key_size = _NODE.unpack_from(page, place)
            length, start = low | high << 16, place + _NODE.size + key_size
            if key_size and start + (8 if flags & _BIG else length) <= self._size:
                elsewhere = None
                if flags & _BIG:
                    elsewhere = int.from_bytes(page[start : start + 8], "little") * self._size + _HEADER.size
                found.append(_Found(page[start - key_size : start], flags, start, elsewhere, length))
        return found, len(found) == len(places)


def _read(fd: int, size: int, offset: int) -> bytes:
    """What can be read of these bytes; blocks that the disk fails to give are zeros."""
    if offset >= 1 << 63:
        return b""
    try:
        return os.pread(fd, size, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    half = size // 2
    if half < 512:
        return bytes(size)
    return _read(fd, half, offset) + _read(fd, size - half, offset + half)
