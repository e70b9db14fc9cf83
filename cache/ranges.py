"""Byte ranges of remote files: neighbours are read as one, several at once, and some ahead of their use."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from .errors import RoivaultError, StoreDamaged
from .record import aligned_memory
from .remote import RemoteFolder
from .threads import threads

THREADS = 16
GAP = 128 << 10  # bytes between two ranges that cost less to read than to ask twice
BLOCK = 8 << 20  # largest read, unless one range is larger
AHEAD = 256 << 20  # bytes that are read ahead of their use at most


class Range(NamedTuple):
    """Some bytes of a file."""

    name: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def coalesce(wanted: Sequence[Range]) -> list[list[Range]]:
    """Groups that are to be read as one, each sorted by place."""
    groups: list[list[Range]] = []
    for one in sorted(set(wanted)):
        if groups:
            first, last = groups[-1][0], groups[-1][-1]
            near = one.name == last.name and one.start - last.end <= GAP and one.end - first.start <= BLOCK
            if near and one.start >= last.end:
                groups[-1].append(one)
                continue
        groups.append([one])
    return groups


class RangeReader:
    """Reads ranges of the files of a folder, from any thread and behind a fork."""

    def __init__(self, folder: RemoteFolder):
        self._folder = folder
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._ahead: dict[Range, Future[dict[Range, memoryview]]] = {}  # range -> the read that it is part of
        self._ahead_bytes = 0

    def read(self, wanted: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in memory of its own, aligned as in the file.

        Raises:
            StoreDamaged: a file is missing, or ends before a range does.
            StoreUnreachable, DiskError
        """
        found = self._taken(wanted)
        groups = list(self._groups([one for one in wanted if one not in found]))
        stop = threading.Event()
        try:
            if len(groups) == 1:
                reads = [self._read(groups[0], stop)]
            else:
                futures = [threads("remote", THREADS).submit(self._read, group, stop) for group in groups]
                reads = [future.result() for future in futures]
        except BaseException:
            stop.set()  # the other threads are not to try on
            raise
        for read in reads:
            found |= read
        return [self._own(found[one], one.start) for one in wanted]

    def read_anew(self, one: Range) -> memoryview:
        """What did not arrive as it should, once more. Raises: as `read`."""
        return self.read([one])[0]

    def read_ahead(self, wanted: Sequence[Range]) -> None:
        """Begin to read what `read` will be asked for; what fails is read again then, what is too much forgotten."""
        if self._pid != os.getpid():
            self._begin_anew()
        with self._lock:
            for group in self._groups([one for one in wanted if one not in self._ahead]):
                size = sum(one.length for one in group)
                if size > AHEAD:
                    continue
                while self._ahead_bytes + size > AHEAD:
                    self._forget(next(iter(self._ahead)))
                future = threads("remote", THREADS).submit(self._read, group, threading.Event())
                self._ahead |= dict.fromkeys(group, future)
                self._ahead_bytes += size

    def _taken(self, wanted: Sequence[Range]) -> dict[Range, memoryview]:
        """What was read ahead, which is then forgotten."""
        if self._pid != os.getpid():
            self._begin_anew()
        with self._lock:
            under_way = {one: self._forget(one) for one in dict.fromkeys(wanted) if one in self._ahead}
        found = {}
        for one, future in under_way.items():
            try:
                found[one] = future.result()[one]
            except RoivaultError:
                pass  # it is read again
        return found

    def _forget(self, one: Range) -> Future[dict[Range, memoryview]]:
        self._ahead_bytes -= one.length
        return self._ahead.pop(one)

    def _groups(self, wanted: Sequence[Range]) -> Iterable[list[Range]]:
        """What is to be read as one."""
        return coalesce(wanted)

    def _read(self, group: list[Range], stop: threading.Event) -> dict[Range, memoryview]:
        name, start, end = group[0].name, group[0].start, group[-1].end
        try:
            data = self._folder.read(name, start, end, stop)
            if len(data) < end - start:  # a connection that was cut looks like a file that was
                data = self._folder.read(name, start, end, stop)
        except FileNotFoundError:
            raise StoreDamaged(self._folder / name, "the shard is missing") from None
        if len(data) < end - start:
            raise StoreDamaged(self._folder / name, f"it ends at byte {start + len(data)}, its index points to {end}")
        return {one: memoryview(data)[one.start - start :][: one.length] for one in group}

    def _own(self, data: memoryview, offset: int) -> memoryview:
        """A copy: what was read together is not to live as long as the last of its parts."""
        memory = aligned_memory(len(data), offset)
        memory[:] = data
        return memoryview(memory).toreadonly()
