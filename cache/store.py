"""Reading stores: keys in, Regions out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from .cold import available_memory, read_values
from .errors import MissingKeys, RoivaultError, StoreMismatch, UsageError
from .index import Index
from .manifest import Manifest, signature
from .record import decode
from .regions import Failure, Regions
from .shard import SealedShard
from .snapshot import Snapshot, State
from .states import is_record
from .targets import Target, absolute, resolve_targets

VERIFY = ("first", "always", "never")
READ = ("auto", "mmap", "pread")
_SUGGESTION_SAMPLE = 5000
_CHUNK = 1024

T = TypeVar("T")


class RegionStore:
    """One or more stores, read as one. Made by `open_store`.

    A snapshot of the manifests: a key that is not found, or `refresh()`, looks for newer ones. May be shared between
    threads, inherited through a fork, and pickled (the other process opens the stores anew).

    Arrays of records in sealed shards are read-only views that keep the file mapped; those of open shards are copies.
    Both stay valid whatever becomes of the store object or the writer.

    Attributes:
        paths: the store directories.
        verify: when checksums are compared: "always", "first" or "never".
        generation: grows when the stores were found changed.
    """

    def __init__(self, target: Target, verify: str):
        self._targets, self.verify = absolute(target), verify
        self._parts = resolve_targets(self._targets)
        self.paths = [path for path, _ in self._parts]
        self.generation = 0
        self._in_memory: bool | None = None
        self._snapshots = self._take_snapshots()

    def __reduce__(self) -> tuple:
        return RegionStore, (self._targets, self.verify)

    def __repr__(self) -> str:
        return f"RegionStore({', '.join(map(str, self.paths))}: {len(self)} records)"

    def _take_snapshots(self) -> list[Snapshot]:
        self.generation += 1
        while True:
            snapshots = [Snapshot(path, self.verify != "never", shards) for path, shards in self._parts]
            try:
                _refuse_conflicts(snapshots)
                return snapshots
            except FileNotFoundError:
                pass  # what was an open shard was sealed or removed meanwhile

    def refresh(self) -> bool:
        """Look at the stores anew; returns whether any has changed.

        Raises: StoreNotFound, StoreDamaged; StoreMismatch: they do not fit together any more.
        """
        changed = any(snapshot.signature != signature(snapshot.path) for snapshot in self._snapshots)
        if changed:
            self._snapshots = self._take_snapshots()
        return changed

    @property
    def manifest(self) -> Manifest:
        """Of the first store."""
        return self._snapshots[0].manifest

    @property
    def manifests(self) -> list[Manifest]:
        """Of every store, in the order of `paths`."""
        return [snapshot.manifest for snapshot in self._snapshots]

    def apart(self) -> list[RegionStore]:
        """Each of the stores on its own, with the same shards. Raises: StoreNotFound, StoreDamaged."""
        parts = zip(self._parts, self.manifests, strict=True)
        return [
            RegionStore(path if chosen is None else [path / shard.file for shard in manifest.shards], self.verify)
            for (path, chosen), manifest in parts
        ]

    # -- records

    def __getitem__(self, key: str) -> Regions:
        """Raises: MissingKeys (a KeyError), CorruptRecord, StoreDamaged."""
        return self.get_many([key])[0]

    def get(self, key: str, default: T = None) -> Regions | T:
        """The regions of `key`, or `default` when it has no record. Raises: CorruptRecord, StoreDamaged."""
        found = self.get_many([key], missing="skip")
        return found[0] if found else default

    def get_many(self, keys: Sequence[str], missing: str = "raise", read: str = "auto") -> list[Regions]:
        """The regions of `keys`, in their order.

        Args:
            missing: "raise", or "skip" to leave out keys that have no record.
            read: how records of sealed shards are read: "mmap" gives views of the mapped files; "pread" reads copies
                with a few threads, which is faster for what is not in memory; "auto" is "mmap" if the sealed shards
                fit in the memory that was available when the first records were read.

        Raises:
            MissingKeys: names all of them.
            CorruptRecord, StoreDamaged, DiskError
        """
        if missing not in ("raise", "skip"):
            raise UsageError(f"missing={missing!r} is not 'raise' or 'skip'")
        if read not in READ:
            raise UsageError(f"read={read!r} is not one of {', '.join(READ)}")
        found = self._find(keys)
        lost = [i for i, hit in enumerate(found) if hit is None or not hit[1].is_record]
        if lost and missing == "raise":
            raise self._missing([keys[i] for i in lost], found[lost[0]])
        hits = [(key, *hit) for key, hit in zip(keys, found, strict=True) if hit is not None and hit[1].is_record]
        if not self.reads_mapped(read):
            sealed = [i for i, (_, _, state) in enumerate(hits) if state.entry is not None]
            values = [state.value for _, _, state in hits]
            places = [(snapshot.mapped(state.shard), state.entry) for _, snapshot, state in (hits[i] for i in sealed)]
            for i, value in zip(sealed, read_values(places), strict=True):
                values[i] = value
        else:
            values = (snapshot.value(state) for _, snapshot, state in hits)
        return [self._decode(*hit, value) for hit, value in zip(hits, values, strict=True)]

    def reads_mapped(self, read: str) -> bool:
        """Whether `get_many(read=read)` gives views of mapped files."""
        if read == "auto" and self._in_memory is None:
            available = available_memory()
            size = sum(shard.bytes for manifest in self.manifests for shard in manifest.sealed)
            self._in_memory = available is None or size <= available
        return read == "mmap" or (read == "auto" and self._in_memory)

    def _decode(self, key: str, snapshot: Snapshot, state: State, value: bytes | memoryview) -> Regions:
        if state.entry is None:
            return decode(key, value, check=self.verify != "never")
        shard = snapshot.mapped(state.shard)
        check = self.verify == "always" or (self.verify == "first" and shard.is_new(state.entry))
        regions = decode(key, value, check)
        if check:
            shard.mark(state.entry)
        return regions

    def record(self, key: str) -> bytes | memoryview:
        """The stored bytes of a record, checked as `verify` says. Raises: MissingKeys, CorruptRecord, StoreDamaged."""
        hit = self._find([key])[0]
        if hit is None or not hit[1].is_record:
            raise self._missing([key], hit)
        value = hit[0].value(hit[1])
        self._decode(key, *hit, value)
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and is_record((hit := self._find([key], False)[0]) and hit[1].flags)

    def location(self, key: str) -> tuple[str, int | None, int | None]:
        """Shard name, byte offset and length of a record; the latter are None while its shard is open.

        Raises: MissingKeys.
        """
        hit = self._find([key], records=False)[0]
        if hit is None or not hit[1].is_record:
            raise self._missing([key], hit)
        snapshot, (_, shard, entry, _) = hit
        return snapshot.shard(shard).name, entry and entry.offset, entry and entry.length

    def places(self, keys: Sequence[str]) -> np.ndarray:
        """Where records lie, to read them in the order of the disk.

        Returns: i64 [len(keys), 3], place in `paths`, shard number and byte offset, the latter -1 while the shard is
            open; all three are -1 for a key that has no record.
        """
        numbers = {path: number for number, path in enumerate(self.paths)}
        places = np.full((len(keys), 3), -1, np.int64)
        for start in range(0, len(keys), _CHUNK):
            for i, hit in enumerate(self._find(keys[start : start + _CHUNK], records=False), start):
                if hit is not None and hit[1].is_record:
                    entry = hit[1].entry
                    places[i] = numbers[hit[0].path], hit[1].shard, entry.offset if entry else -1
        return places

    def sealed_shard(self, place: Sequence[int]) -> SealedShard:
        """The file of a row of `places`."""
        return self._snapshots[place[0]].mapped(place[1])

    def prefetch(self, keys: Sequence[str]) -> None:
        """Ask the system to read the records of `keys` ahead; keys that are not in a sealed shard are ignored."""
        for hit in self._find(keys, records=False):
            if hit is not None and hit[1].entry is not None:
                hit[0].mapped(hit[1].shard).prefetch(hit[1].entry)

    # -- listings

    def __len__(self) -> int:
        """Number of records."""
        if len(self._snapshots) == 1:
            return self._on_current(lambda: self._snapshots[0].resolved().records)
        return sum(1 for _ in self.keys())

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """The keys that have a record, in storage order."""
        for key, state_is_record in self._states():
            if state_is_record:
                yield key

    def failures(self) -> Iterator[Failure]:
        """The keys that have a failure."""
        failed = (key for key, state_is_record in self._states() if not state_is_record)
        while chunk := list(islice(failed, _CHUNK)):
            for key, hit in zip(chunk, self._find(chunk, records=False), strict=True):
                if hit is not None and not hit[1].is_record:  # else it got a record meanwhile
                    yield hit[0].failure(key, hit[1])

    def _states(self) -> Iterator[tuple[str, bool]]:
        """(key, whether its state is a record) of every key once."""
        indexes = self._resolved()  # taken at once: an open shard may be sealed while the keys are walked through
        for path, index in indexes:
            states = ((key.decode(), is_record(entry.flags)) for key, entry in index.states())
            if len(indexes) == 1:
                yield from states
                continue
            while chunk := list(islice(states, _CHUNK)):
                hits = self._find([key for key, _ in chunk], records=False)
                yield from (
                    state for state, hit in zip(chunk, hits, strict=True) if hit is not None and hit[0].path == path
                )

    # -- lookups

    def _find(self, keys: Sequence[str], records: bool = True) -> list[tuple[Snapshot, State] | None]:
        found = self._on_current(lambda: self._look_up(keys, records))
        if any(hit is None or not hit[1].is_record for hit in found) and self.refresh():
            found = self._on_current(lambda: self._look_up(keys, records))
        return found

    def _look_up(self, keys: Sequence[str], records: bool) -> list[tuple[Snapshot, State] | None]:
        """The first store that has a record of the key, else the first that has a failure."""
        found: list[tuple[Snapshot, State] | None] = [None] * len(keys)
        left = range(len(keys))
        for snapshot in self._snapshots:
            for i, state in zip(left, snapshot.states([keys[i] for i in left], records), strict=True):
                if state is not None and (found[i] is None or state.is_record):
                    found[i] = snapshot, state
            left = [i for i in left if found[i] is None or not found[i][1].is_record]
            if not left:
                break
        return found

    def _on_current(self, look: Callable[[], T]) -> T:
        """What was an open shard may have been sealed or removed meanwhile: then look at the stores as they are now."""
        while True:
            try:
                return look()
            except FileNotFoundError:
                self._snapshots = self._take_snapshots()

    def _resolved(self) -> list[tuple[Path, Index]]:
        """The states of every store."""
        return self._on_current(lambda: [(snapshot.path, snapshot.resolved()) for snapshot in self._snapshots])

    def _missing(self, keys: Sequence[str], first: tuple[Snapshot, State] | None) -> MissingKeys:
        """`first` is what was found for the first of the keys."""
        key = keys[0]
        if first is not None:
            failure = first[0].failure(key, first[1])
            hint = f"{key!r} failed: {failure.kind}: {failure.message}"
        else:
            hint = partial(self._near, key)
        return MissingKeys(keys, ", ".join(map(str, self.paths)), hint)

    def _near(self, key: str) -> str:
        """Which keys look like `key`, of a sample: those that come first in the indexes, which hashes sort."""
        try:
            indexes = [index for _, index in self._resolved()]
        except RoivaultError:
            return ""  # that a key is missing is to be told in any case
        places = ((index, i) for index in indexes for i, flags in enumerate(index.columns["flags"]) if is_record(flags))
        sample = (index.key(i).decode(errors="replace") for index, i in islice(places, _SUGGESTION_SAMPLE))
        near = difflib.get_close_matches(key, sample, cutoff=0.7)
        return f"near {key!r} are {', '.join(map(repr, near))}" if near else ""


def open_store(
    target: Target,
    *,
    token: str | None = None,
    tls_ca: str | None = None,
    verify: str = "first",
) -> RegionStore:
    """Open stores for reading.

    Args:
        target: a store directory, shard files of one, a glob, or a list of these, which are read as one. When several
            stores have a record of a key, it must be the same in all of them.
        token, tls_ca: for a server only.
        verify: compare the checksum of a record each time it is read ("always"), the first time it is read in this
            process ("first"), or not ("never").

    Raises:
        StoreNotFound, StoreDamaged, UsageError
        StoreMismatch: the stores do not fit together.
    """
    if verify not in VERIFY:
        raise UsageError(f"verify={verify!r} is not one of {', '.join(VERIFY)}")
    if token or tls_ca:
        raise UsageError("token and tls_ca are for a server, and the target is a local store")
    return RegionStore(target, verify)


def _refuse_conflicts(snapshots: Sequence[Snapshot]) -> None:
    """Several stores as one: one feature dimension, and no key with two different records (in sealed shards)."""
    for one, other in combinations(snapshots, 2):
        if None not in (one.manifest.dim, other.manifest.dim) and one.manifest.dim != other.manifest.dim:
            raise StoreMismatch(
                f"{one.path} has features of dimension {one.manifest.dim}, {other.path} of {other.manifest.dim}: open "
                "them one at a time"
            )
        a, b = one.resolved(), other.resolved()
        positions = np.flatnonzero(np.isin(a.columns["hash"], b.columns["hash"]))
        keys = [a.key(i) for i in positions]
        for place, entry in b.find(keys, a.columns["hash"][positions]):
            mine = a.entry(positions[place])
            if (
                is_record(mine.flags) and is_record(entry.flags) and mine.length and entry.length
                and (mine.length, mine.checksum) != (entry.length, entry.checksum)
            ):  # fmt: skip
                raise StoreMismatch(
                    f"{one.path} and {other.path} hold different records of {keys[place].decode()!r}: open them one at "
                    "a time, or make one store of them first"
                )
