"""A store directory as one manifest describes it: the indexes of its sealed shards, and its open shards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from .environment import Environment
from .errors import StoreDamaged
from .index import FAILURE, FILE, Entry, Index, hash_keys, overrides
from .manifest import Manifest, Shard, signature
from .regions import Failure
from .shard import SealedShard

MAX_KEY_BYTES = 511  # LMDB's limit


class State(NamedTuple):
    """What a store holds for a key: where (sealed), or the value itself (open)."""

    flags: int
    shard: int
    entry: Entry | None
    value: bytes | None

    @property
    def is_record(self) -> bool:
        return not self.flags & FAILURE


def encode_key(key: str) -> bytes:
    """Utf-8; text that is not valid unicode gets bytes that no store holds."""
    return key.encode("utf-8", "surrogatepass")


def encode_failure(failure: Failure) -> bytes:
    """JSON, in ASCII: messages and paths may hold bytes that are no text."""
    return json.dumps({"kind": failure.kind, "message": failure.message, "source": failure.source}).encode()


def decode_failure(key: str, value: bytes) -> Failure:
    return Failure(key, **json.loads(bytes(value)))


class Snapshot:
    """One manifest of a store and what belongs to it. Sealed shards and their indexes are mapped when first used.

    Attributes:
        path: the store directory.
        manifest: as it was when the snapshot was taken.
        indexes: of the sealed shards in their order; index.idx, which covers the first ones, comes first.
        open: number -> environment of the open shards.

    Raises:
        StoreNotFound, StoreDamaged
    """

    def __init__(self, path: Path, check: bool = True, shards: frozenset[int] | None = None):
        self.path = path
        self.signature = signature(path)
        self.manifest = Manifest.load(path)
        if shards is not None:
            self.manifest = self.manifest.only(shards)
        self.indexes = self._load_indexes(check)
        self.open: dict[int, Environment] = {}
        try:
            for shard in self.manifest.open:
                self.open[shard.number] = Environment.acquire(path / shard.file)
        except FileNotFoundError:
            self.close()
            raise StoreDamaged(path / shard.file, "the open shard is missing") from None
        self._sealed: dict[int, SealedShard] = {}

    def _load_indexes(self, check: bool) -> list[Index]:
        sealed = {shard.number: shard for shard in self.manifest.sealed}
        indexes = []
        merged = load_merged(self.path, self.manifest, check)
        if merged is not None:
            indexes.append(merged)
        for number, shard in sealed.items():
            if merged is None or number not in merged.covers:
                indexes.append(load_index(self.path, shard, check))
        return indexes

    def close(self) -> None:
        """Give back the environments of open shards. What was read from sealed ones stays valid."""
        for environment in self.open.values():
            environment.release()
        self.open = {}

    def __del__(self):
        if hasattr(self, "open"):
            self.close()

    def states(self, keys: Sequence[str], values: bool = True) -> list[State | None]:
        """The state of each key.

        Args:
            values: copy the value of states that an open shard holds; without, their `value` is None.

        Raises:
            FileNotFoundError: an open shard is open no more: take a new snapshot.
        """
        encoded = [encode_key(key) for key in keys]
        hashes = hash_keys(encoded)
        found: list[State | None] = [None] * len(keys)
        for index in self.indexes:
            for place, entry in index.find(encoded, hashes):
                if found[place] is None or overrides(found[place].flags, entry.flags):
                    found[place] = State(entry.flags, entry.shard, entry, None)
        for number, environment in self.open.items():
            with environment.read() as view:
                for place, key in enumerate(encoded):
                    earlier = found[place]
                    if not 0 < len(key) <= MAX_KEY_BYTES or (earlier and earlier.is_record and not view.overriding):
                        continue
                    flags = view.flags(key)
                    if flags is not None and (earlier is None or overrides(earlier.flags, flags)):
                        value = bytes(view.value(key, flags)) if values else None
                        found[place] = State(flags, number, None, value)
        return found

    def value(self, state: State) -> bytes | memoryview:
        """The bytes of a state: a view of the shard when it is sealed. Raises: StoreDamaged."""
        return state.value if state.entry is None else self.sealed(state.shard).value(state.entry)

    def sealed(self, number: int) -> SealedShard:
        """Raises: StoreDamaged: the shard is missing or was cut."""
        mapped = self._sealed.get(number)
        if mapped is None:
            shard = self.shard(number)
            mapped = self._sealed[number] = SealedShard.shared(self.path / shard.file, shard)
        return mapped

    def shard(self, number: int) -> Shard:
        return next(shard for shard in self.manifest.shards if shard.number == number)

    def resolved(self) -> Index:
        """One state for every key, open shards included (their entries lie nowhere: offset and length are 0)."""
        versions = {number: environment.version() for number, environment in self.open.items()}
        if self._resolved is None or self._resolved[0] != versions:
            self._resolved = versions, self._resolve()
        return self._resolved[1]

    _resolved: tuple[dict[int, int], Index] | None = None

    def _resolve(self) -> Index:
        indexes = [self._resolved_sealed] if self.indexes else []
        for number, environment in self.open.items():
            with environment.read() as view:
                indexes.append(Index.build((key, Entry(number, 0, 0, 0, flags)) for key, flags in view.keys()))
        return indexes[0] if len(indexes) == 1 else Index.merge(indexes) if indexes else Index.build([])

    @cached_property
    def _resolved_sealed(self) -> Index:
        return self.indexes[0] if len(self.indexes) == 1 else Index.merge(self.indexes)

    def keys(self) -> Iterator[tuple[str, Entry]]:
        """(key, entry) of every state in storage order."""
        for key, entry in self.resolved().states():
            yield key.decode(), entry


def load_index(store: Path, shard: Shard, check: bool = True) -> Index:
    """The index of a sealed shard. Raises: StoreDamaged."""
    path = store / shard.index_file
    index = Index.open(path, check)
    if f"{index.checksum:016x}" != shard.index_checksum:
        raise StoreDamaged(path, f"its checksum is {index.checksum:016x}, the manifest says {shard.index_checksum}")
    index.covers[shard.number] = index.checksum
    return index


def load_merged(store: Path, manifest: Manifest, check: bool = True) -> Index | None:
    """index.idx, or None when there is none or it covers shards that this manifest does not (yet) have.

    Raises: StoreDamaged.
    """
    if not (store / FILE).exists():
        return None
    merged = Index.open(store / FILE, check)
    sealed = {shard.number: shard.index_checksum for shard in manifest.sealed}
    fits = all(sealed.get(number) == f"{checksum:016x}" for number, checksum in merged.covers.items())
    return merged if fits else None
