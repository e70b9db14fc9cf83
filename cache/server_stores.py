"""What a feature server offers: the sealed shards of stores on this machine, which it only ever reads."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .cold import available_memory, read_values
from .errors import CorruptRecord, DataError, RoivaultError, StoreDamaged, UsageError
from .index import FILE as MERGED_INDEX
from .index import Entry
from .manifest import Manifest, signature
from .shard import SealedShard
from .snapshot import Snapshot, State
from .states import is_record
from .targets import Target, absolute, on_this_machine, resolve_targets
from .wire import FILE_CHUNK, NOT_FOUND, InvalidRequest, Note

_AT_ONCE = 64  # records of a request that are handed on together
_COPIED_AT_ONCE = 16  # where they are read into memory, which a slow reader keeps
_COPIED_BYTES = 1 << 20  # of a record: larger ones are mapped all the same
_TOLD = 1000  # different errors that are logged, each once
_SEARCHED = 1 << 16  # states that are looked through at a time for those of a page

_log = logging.getLogger("roivault.server")

Place = tuple[SealedShard, Entry]


class SealedSnapshot(Snapshot):
    """Without the open shards, so that no lock file is made and no transaction begun."""

    def _take(self, check: bool, shards: frozenset[int] | None) -> None:
        sealed = frozenset(shard.number for shard in Manifest.load(self.path).sealed)
        super()._take(check, sealed if shards is None else sealed & shards)

    def size_of_shard(self, number: int) -> int:
        """-1 if there is none of this number."""
        return self._sizes.get(number, -1)

    @cached_property
    def fits_in_memory(self) -> bool:
        available = available_memory()
        return available is None or sum(self._sizes.values()) <= available

    @cached_property
    def manifest_bytes(self) -> bytes:
        return self.manifest.to_bytes()


class ServedStore:
    """A store, or some shards of one, for many threads at a time. What is sealed meanwhile is found by itself.

    Args:
        path: the store directory.
        shards: which of its shards; None: all that are sealed, or will be.

    Attributes:
        name: that of its directory, without .roi.

    Raises: StoreNotFound, StoreDamaged.
    """

    def __init__(self, path: Path, shards: frozenset[int] | None = None):
        self.path, self.name = path, path.name.removesuffix(".roi")
        self._shards, self._lock = shards, threading.Lock()
        self._snapshot = SealedSnapshot(path, shards=shards)
        self._told: set[str] = set()
        self._failed_at: object = self._snapshot.signature  # of the manifest that could not be read last

    def snapshot(self) -> SealedSnapshot:
        """Of the store as it is now; as it was last, while it cannot be read."""
        found = signature(self.path)
        if found not in (self._snapshot.signature, self._failed_at):
            with self._lock:
                if found not in (self._snapshot.signature, self._failed_at):
                    try:
                        self._snapshot = SealedSnapshot(self.path, shards=self._shards)
                    except RoivaultError as error:
                        self._failed_at = found
                        _log.error("%s is served as it was: %s", self.name, error)
        return self._snapshot

    def find(self, keys: Sequence[str]) -> tuple[SealedSnapshot, list[State | None]]:
        """The state of each key. Raises: StoreDamaged."""
        snapshot = self.snapshot()  # a record that is there may have been replaced
        return snapshot, snapshot.states(keys)

    def records(self, keys: Sequence[str]) -> Iterator[list[memoryview | Note]]:
        """The record of each key, or why there is none; some at a time, in order. Raises: StoreDamaged.

        Records are views of the mapped shards, or copies where the store does not fit in memory. The first time that
        one is read it is compared with its checksum.
        """
        snapshot, states = self.find(keys)
        found = [self._place(snapshot, key, state) for key, state in zip(keys, states, strict=True)]
        for start, values in self._read(snapshot, found):
            for i, value in enumerate(values):
                if not isinstance(value, Note):
                    values[i] = self._compared(keys[start + i], value, *found[start + i])
            yield values

    def _compared(self, key: str, value: memoryview, shard: SealedShard, entry: Entry) -> memoryview | Note:
        if shard.is_new(entry):
            if xxhash.xxh3_64_intdigest(value) != entry.checksum:
                return self._damaged(CorruptRecord(key, f"its checksum is wrong ({shard.path}, byte {entry.offset})"))
            shard.mark(entry)
        return value

    def records_at(self, places: Sequence[Sequence[int]]) -> Iterator[list[memoryview | Note]]:
        """Bytes of sealed shards, each [shard number, offset, length]; otherwise as `records`, but not compared."""
        snapshot = self._snapshot
        if any(snapshot.size_of_shard(number) < 0 for number, _, _ in places):
            snapshot = self.snapshot()
        found = [self._place_at(snapshot, Entry(*place, 0, 0)) for place in places]
        for _, values in self._read(snapshot, found):
            yield values

    def _place(self, snapshot: SealedSnapshot, key: str, state: State | None) -> Place | Note:
        if state is None:
            return Note()
        try:
            if state.is_record:
                return snapshot.mapped(state.shard), state.entry
            failure = asdict(snapshot.failure(key, state))
            return Note({name: failure[name] for name in ("kind", "message", "source")})
        except DataError as error:
            return self._damaged(error)

    def _place_at(self, snapshot: SealedSnapshot, entry: Entry) -> Place | Note:
        if entry.offset + entry.length > snapshot.size_of_shard(entry.shard):
            return Note()
        try:
            return snapshot.mapped(entry.shard), entry
        except DataError as error:
            return self._damaged(error)

    def _read(
        self, snapshot: SealedSnapshot, found: Sequence[Place | Note]
    ) -> Iterator[tuple[int, list[memoryview | Note]]]:
        """The values at places, and the number of the first of them. Raises: DiskError."""
        step = _AT_ONCE if snapshot.fits_in_memory else _COPIED_AT_ONCE
        for start in range(0, len(found), step):
            part: list[Any] = list(found[start : start + step])
            places = [(i, one) for i, one in enumerate(part) if not isinstance(one, Note)]
            for i, (shard, entry) in places:
                part[i] = shard.value(entry)
            if not snapshot.fits_in_memory:
                copied = [(i, one) for i, one in places if one[1].length <= _COPIED_BYTES]
                for (i, _), value in zip(copied, read_values([one for _, one in copied]), strict=True):
                    part[i] = value
            yield start, part

    def _damaged(self, error: DataError) -> Note:
        why = str(error)
        if why not in self._told and len(self._told) < _TOLD:
            self._told.add(why)
            _log.error("%s: %s", self.name, why)
        return Note(damaged=True)

    def size_of(self, keys: Sequence[str]) -> tuple[int, int]:
        """Number of records of these keys, and their bytes. Raises: StoreDamaged."""
        entries = [state.entry for state in self.find(keys)[1] if state is not None and state.is_record]
        return len(entries), sum(entry.length for entry in entries)

    def _page(
        self, snapshot: SealedSnapshot, records: bool, after: str | None, limit: int
    ) -> tuple[list[tuple[str, State]], str | None]:
        """The keys of about `limit` records, or failures, in the order of their hashes, and where the next page begins.

        Raises: InvalidRequest, StoreDamaged.
        """
        if after is not None and not re.fullmatch("[0-9a-f]{16}", after):
            raise InvalidRequest("after is to be what the page before said, or null")
        index = snapshot.resolved()
        hashes, flags = index.columns["hash"], index.columns["flags"]
        start = 0 if after is None else int(np.searchsorted(hashes, np.uint64(int(after, 16)), "right"))
        found: list[int] = []
        while start < len(index) and len(found) < limit:
            wanted = [is_record(flag) == records for flag in flags[start : start + _SEARCHED].tolist()]
            found += (np.flatnonzero(wanted)[: limit - len(found)] + start).tolist()
            start = found[-1] + 1 if len(found) == limit else start + _SEARCHED
        while 0 < start < len(index) and hashes[start] == hashes[start - 1]:  # pages end between hashes
            if is_record(flags[start]) == records:
                found.append(start)
            start += 1
        states = [(index.text(index.key(i)), index.entry(i)) for i in found]
        page = [(key, State(entry.flags, entry.shard, entry, None)) for key, entry in states]
        return page, f"{int(hashes[start - 1]):016x}" if start < len(index) else None

    def keys(self, after: str | None, limit: int) -> dict[str, Any]:
        """A page of keys that have records. Raises: InvalidRequest, StoreDamaged."""
        page, after = self._page(self.snapshot(), True, after, limit)
        return {"keys": [key for key, _ in page], "after": after}

    def failures(self, after: str | None, limit: int) -> dict[str, Any]:
        """A page of failures. Raises: InvalidRequest, CorruptRecord, StoreDamaged."""
        snapshot = self.snapshot()
        page, after = self._page(snapshot, False, after, limit)
        return {"failures": [asdict(snapshot.failure(key, state)) for key, state in page], "after": after}

    def stats(self) -> dict[str, Any]:
        """Raises: StoreDamaged."""
        snapshot = self.snapshot()
        index, manifest = snapshot.resolved(), snapshot.manifest
        return {
            "records": index.records,
            "failures": index.failures,
            "bytes": sum(shard.bytes for shard in manifest.shards),
            "shards": len(manifest.shards),
            "dim": manifest.dim,
            "feature_dtype": manifest.feature_dtype,
        }

    def manifest(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Bytes of the manifest of what is served."""
        yield self.snapshot().manifest_bytes[offset : None if length is None else offset + length]

    def index(self, file: str, offset: int, length: int | None) -> Iterator[bytes]:
        """Bytes of an index. Raises: InvalidRequest: there is none of this name; StoreDamaged."""
        snapshot = self.snapshot()
        path, names = self.path / file, [shard.index_file for shard in snapshot.manifest.shards]
        if file not in names and not (file == MERGED_INDEX and snapshot.merged and path.exists()):
            raise InvalidRequest(f"the store has no index {file!r}", NOT_FOUND)
        try:
            with open(path, "rb") as opened:
                opened.seek(min(offset, os.fstat(opened.fileno()).st_size))
                while data := opened.read(FILE_CHUNK if length is None else min(FILE_CHUNK, length)):
                    yield data
                    length = None if length is None else length - len(data)
        except OSError as error:
            raise StoreDamaged(path, f"it cannot be read: {error.strerror}") from error


def served_stores(target: Target) -> dict[str, ServedStore]:
    """The stores to serve, by name. Raises: UsageError, StoreNotFound, StoreDamaged."""
    stores: dict[str, ServedStore] = {}
    for place, shards in resolve_targets(absolute(target)):
        store = ServedStore(on_this_machine(place), shards)
        other = stores.setdefault(store.name, store)
        if other is not store:
            raise UsageError(f"{other.path} and {store.path} have one name, {store.name!r}: serve one, or rename it")
    return stores
