"""A store directory as one manifest describes it: the indexes of its sealed shards, and its open shards."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from .environment import Environment, View
from .errors import CorruptRecord, StoreDamaged
from .index import FILE, Entry, Index, hash_keys
from .keys import MAX_KEY_BYTES
from .manifest import Manifest, Shard, signature
from .record import decode
from .regions import Failure, Regions
from .shard import SealedShard
from .states import FAILURE, REPLACED, decode_failure, is_record, overrides

_LOCKLESS_TRIES = 5


class State(NamedTuple):
    """What a store holds for a key: where, in a sealed shard, or a copy of the value, in an open one."""

    flags: int
    shard: int
    entry: Entry | None
    value: bytes | None

    @property
    def is_record(self) -> bool:
        return not self.flags & FAILURE


class Snapshot:
    """One manifest of a store and what belongs to it.

    Args:
        path: the store directory.
        check: compare the checksums of the indexes; of large ones when that is first needed.
        shards: read these shards only.

    Attributes:
        manifest: as it was when the snapshot was taken.
        signature: of the manifest file, to tell whether it was replaced since.
        merged: index.idx, if it covers shards of this manifest.
        unmerged: the indexes of the sealed shards it does not cover.
        open: shard number -> environment of the open shards.

    Raises:
        StoreNotFound, StoreDamaged
    """

    def __init__(self, path: Path, check: bool = True, shards: frozenset[int] | None = None):
        self.path = path
        while True:
            self.signature = self._signature()
            try:
                self._take(check, shards)
                break
            except StoreDamaged:
                if self.signature == self._signature():
                    raise  # else the writer sealed or removed a shard between our look at the manifest and at the shard
        self._mapped: dict[int, SealedShard] = {}
        self._resolved: tuple[dict[int, int], Index] | None = None
        self.close = weakref.finalize(self, _release, list(self.open.values()))

    def _signature(self) -> object:
        return signature(self.path)

    def changed(self, asked: bool) -> bool:
        """Whether the manifest was replaced since; `asked` tells a wish to know from a key that was not found."""
        return self.signature != self._signature()

    def _take(self, check: bool, shards: frozenset[int] | None) -> None:
        manifest = Manifest.load(self.path)
        self.manifest = manifest if shards is None else manifest.only(shards)
        self.merged = load_merged(self.path, self.manifest, check, put_off=True)
        covered = self.merged.covers if self.merged else {}
        self._sizes = {shard.number: shard.bytes for shard in self.manifest.sealed}
        self.unmerged = [
            load_index(self.path, s, check, put_off=True) for s in self.manifest.sealed if s.number not in covered
        ]
        self.open: dict[int, Environment] = {}
        try:
            for shard in self.manifest.open:
                self.open[shard.number] = Environment.acquire(self.path / shard.file)
        except FileNotFoundError:
            _release(self.open.values())
            raise StoreDamaged(self.path / shard.file, "the open shard is missing") from None

    @property
    def indexes(self) -> list[Index]:
        """Of all sealed shards, in their order."""
        return [self.merged, *self.unmerged] if self.merged else self.unmerged

    def states(self, keys: Sequence[str], records: bool = True) -> list[State | None]:
        """The state of each key.

        Args:
            records: copy the records of open shards too, not only their failures.

        Raises:
            FileNotFoundError: an open shard is open no more: take a new snapshot.
            StoreDamaged
        """
        encoded, hashes = _encode(keys)
        found: list[State | None] = [None] * len(keys)
        for index in self.indexes:
            for place, entry in index.find(encoded, hashes):
                if entry.offset + entry.length > self._sizes.get(entry.shard, -1):
                    raise self._points_outside(keys[place], entry.shard)
                if found[place] is None or overrides(found[place].flags, entry.flags):
                    found[place] = State(entry.flags, entry.shard, entry, None)
        for number in self.open:
            for place, state in self._open_states(number, encoded, found, records):
                found[place] = state
        return found

    def places(self, keys: Sequence[str]) -> np.ndarray:
        """`states` for many keys.

        Returns: i64[len(keys), 3], flags, shard number and byte offset; the latter -1 in an open shard, all three -1
            where there is no state.

        Raises: as `states`.
        """
        if self.open:
            states = self.states(keys, records=False)
            return np.array([_place(state) for state in states], np.int64).reshape(-1, 3)
        encoded, hashes = _encode(keys)
        places = np.full((len(keys), 3), -1, np.int64)
        for index in self.indexes:
            found, positions = index.match(encoded, hashes)
            flags, shards, offsets, lengths = (
                index.columns[name][positions] for name in ("flags", "shard", "offset", "length")
            )
            numbers, which = np.unique(shards, return_inverse=True)
            room = np.array([self._sizes.get(number, -1) for number in numbers.tolist()], np.int64)[which] - lengths
            outside = np.flatnonzero((room < 0) | (offsets > room.clip(0).astype(np.uint64)))
            if outside.size:
                raise self._points_outside(keys[found[outside[0]]], shards[outside[0]])
            earlier = places[found, 0]
            holds = (earlier < 0) | (earlier & FAILURE > 0) | (flags & REPLACED > 0)  # see `overrides`
            places[found[holds]] = np.stack([flags, shards, offsets.astype(np.int64)], 1)[holds]
        return places

    def _points_outside(self, key: str, shard: int) -> StoreDamaged:
        return StoreDamaged(self.path, f"the index entry of {key!r} points behind the end of shard {shard}")

    def _open_states(
        self, number: int, keys: list[bytes], found: list[State | None], records: bool
    ) -> list[tuple[int, State]]:
        """(place, state) of the keys whose state in an open shard overrides what was found before."""
        environment, tries = self.open[number], _LOCKLESS_TRIES
        while True:
            try:
                with self._read(number) as view:
                    states = list(_overriding_states(view, number, keys, found, records))
                if environment.lockless:
                    for place, state in states:
                        _check_copy(keys[place].decode(), state)
                return states
            except (StoreDamaged, CorruptRecord):
                tries -= 1
                if not environment.lockless or not tries:
                    raise  # else a writer elsewhere may have altered a page under our eyes

    @contextmanager
    def _read(self, number: int) -> Iterator[View]:
        """A transaction on an open shard.

        LMDB is not to open what another process has sealed since the manifest was read: it leaves a lock file there.
        """
        environment = self.open[number]
        if not environment.is_open and signature(self.path) != self.signature:
            raise FileNotFoundError(f"{environment.path} may have been sealed: the manifest has changed")
        with environment.read() as view:
            yield view

    def value(self, state: State) -> bytes | memoryview:
        """The bytes of a state: a view of a sealed shard, the copy from an open one. Raises: StoreDamaged."""
        return state.value if state.entry is None else self.mapped(state.shard).value(state.entry)

    def failure(self, key: str, state: State) -> Failure:
        """Raises: CorruptRecord, StoreDamaged."""
        value = self.value(state)
        if state.entry is not None and xxhash.xxh3_64_intdigest(value) != state.entry.checksum:
            where = f"{self.mapped(state.shard).path}, byte {state.entry.offset}"
            raise CorruptRecord(key, f"the checksum of its failure is wrong ({where})")
        return decode_failure(key, value)

    def mapped(self, number: int) -> SealedShard:
        """A sealed shard. Raises: StoreDamaged: it is missing or was cut."""
        mapped = self._mapped.get(number)
        if mapped is None:
            shard = self.shard(number)
            mapped = self._mapped[number] = SealedShard.shared(self.path / shard.file, shard)
        return mapped

    def shard(self, number: int) -> Shard:
        return next(shard for shard in self.manifest.shards if shard.number == number)

    def resolved(self) -> Index:
        """One state for every key; entries of open shards have offset, length and checksum 0.

        Raises: FileNotFoundError: an open shard is open no more.
        """
        versions = {}
        for number in self.open:
            with self._read(number) as view:
                versions[number] = view.version
        if self._resolved is None or self._resolved[0] != versions:
            indexes = self.indexes
            for number in self.open:
                with self._read(number) as view:
                    states = [(key, Entry(number, 0, 0, 0, flags)) for key, flags in view.keys()]
                indexes = [*indexes, Index.build(states)]
            self._resolved = versions, indexes[0] if len(indexes) == 1 else Index.merge(indexes)
        return self._resolved[1]


def _encode(keys: Sequence[str]) -> tuple[list[bytes], np.ndarray]:
    encoded = [key.encode("utf-8", "surrogatepass") for key in keys]
    return encoded, hash_keys(encoded)


def _place(state: State | None) -> tuple[int, int, int]:
    if state is None:
        return -1, -1, -1
    return state.flags, state.shard, -1 if state.entry is None else state.entry.offset


def _overriding_states(
    view: View, number: int, keys: list[bytes], found: list[State | None], records: bool
) -> Iterator[tuple[int, State]]:
    for place, key in enumerate(keys):
        earlier = found[place]
        if not 0 < len(key) <= MAX_KEY_BYTES or (earlier and earlier.is_record and not view.overriding):
            continue
        flags = view.flags(key)
        if flags is not None and (earlier is None or overrides(earlier.flags, flags)):
            copied = bytes(view.value(key, flags)) if records or not is_record(flags) else None
            yield place, State(flags, number, None, copied)


def _check_copy(key: str, state: State) -> None:
    """Raises: CorruptRecord."""
    if not state.is_record:
        decode_failure(key, state.value)
    elif state.value is not None:
        decode(key, state.value)


def _release(environments: Sequence[Environment]) -> None:
    for environment in environments:
        environment.release()


def check_value(key: bytes, value: bytes | memoryview, entry: Entry) -> Regions | None:
    """The regions in the value of a state, if it is the one that an index tells of; None of a failure.

    Raises: CorruptRecord.
    """
    name = key.decode(errors="replace")
    if len(value) != entry.length or xxhash.xxh3_64_intdigest(value) != entry.checksum:
        raise CorruptRecord(name, "it is not what the index has the checksum of")
    if is_record(entry.flags):
        return decode(name, value)
    decode_failure(name, value)
    return None


def load_index(store: Path, shard: Shard, check: bool = True, put_off: bool = False) -> Index:
    """The index of a sealed shard; `check` and `put_off` are those of `Index.open`. Raises: StoreDamaged."""
    path = store / shard.index_file
    index = Index.open(path, check, put_off)
    if f"{index.checksum:016x}" != shard.index_checksum:
        raise StoreDamaged(path, f"its checksum is {index.checksum:016x}, the manifest says {shard.index_checksum}")
    index.covers[shard.number] = index.checksum
    return index


def load_merged(store: Path, manifest: Manifest, check: bool = True, put_off: bool = False) -> Index | None:
    """index.idx; None when there is none, or when it covers a shard that this manifest does not have (yet).

    Raises: StoreDamaged.
    """
    path = store / FILE
    if not os.path.exists(path):
        return None
    merged = Index.open(path, check, put_off)
    sealed = {shard.number: shard.index_checksum for shard in manifest.sealed}
    fits = all(sealed.get(number) == f"{checksum:016x}" for number, checksum in merged.covers.items())
    return merged if fits else None
