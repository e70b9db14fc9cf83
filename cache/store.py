"""Reading stores: keys in, Regions out."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from .cold import available_memory, read_values
from .errors import MissingKeys, StoreMismatch, StoreNotFound, UsageError
from .index import Entry
from .manifest import FILE, Manifest, signature
from .record import decode
from .regions import Failure, Regions
from .shard import SealedShard
from .snapshot import Snapshot, State
from .states import is_record

VERIFY = ("first", "always", "never")
READ = ("auto", "mmap", "pread")
_SUGGESTION_SAMPLE = 5000
_CHUNK = 1024

Target = str | os.PathLike | Iterable[str | os.PathLike]
T = TypeVar("T")


class RegionStore:
    """One or more stores, read as one. Made by `open_store`.

    A snapshot of the manifests: a key that is not found, or `refresh()`, looks for newer ones. May be shared between
    threads, inherited through a fork, and pickled (the other process opens the stores anew).

    Arrays of records in sealed shards are read-only views that keep the file mapped; those of open shards are copies.
    Both stay valid whatever becomes of the store object or the writer.

    Attributes:
        paths: the store directories.
    """

    def __init__(self, target: Target, verify: str):
        self._targets, self._verify = absolute(target), verify
        self._parts = resolve_targets(self._targets)
        self.paths = [path for path, _ in self._parts]
        self._in_memory: bool | None = None
        self._snapshots = self._take_snapshots()
        _refuse_conflicts(self._snapshots)

    def __reduce__(self) -> tuple:
        return RegionStore, (self._targets, self._verify)

    def __repr__(self) -> str:
        return f"RegionStore({', '.join(map(str, self.paths))}: {len(self)} records)"

    def _take_snapshots(self) -> list[Snapshot]:
        return [Snapshot(path, self._verify != "never", shards) for path, shards in self._parts]

    def refresh(self) -> bool:
        """Look at the stores anew; returns whether any has changed. Raises: StoreNotFound, StoreDamaged."""
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
        lost = [key for key, hit in zip(keys, found, strict=True) if hit is None or not hit[1].is_record]
        if lost and missing == "raise":
            raise self._missing(lost)
        hits = [(key, *hit) for key, hit in zip(keys, found, strict=True) if hit is not None and hit[1].is_record]
        if read == "pread" or (read == "auto" and not self._fits()):
            sealed = [i for i, (_, _, state) in enumerate(hits) if state.entry is not None]
            values = [state.value for _, _, state in hits]
            for i, value in zip(sealed, read_values([_place(*hits[i][1:]) for i in sealed]), strict=True):
                values[i] = value
        else:
            values = (snapshot.value(state) for _, snapshot, state in hits)
        return [self._decode(*hit, value) for hit, value in zip(hits, values, strict=True)]

    def _fits(self) -> bool:
        if self._in_memory is None:
            available = available_memory()
            size = sum(shard.bytes for manifest in self.manifests for shard in manifest.sealed)
            self._in_memory = available is None or size <= available
        return self._in_memory

    def _decode(self, key: str, snapshot: Snapshot, state: State, value: bytes | memoryview) -> Regions:
        if state.entry is None:
            return decode(key, value, check=self._verify != "never")
        shard = snapshot.mapped(state.shard)
        check = self._verify == "always" or (self._verify == "first" and shard.is_new(state.entry))
        regions = decode(key, value, check)
        if check:
            shard.mark(state.entry)
        return regions

    def record(self, key: str) -> bytes | memoryview:
        """The stored bytes of a record, checked as `verify` says. Raises: MissingKeys, CorruptRecord, StoreDamaged."""
        hit = self._find([key])[0]
        if hit is None or not hit[1].is_record:
            raise self._missing([key])
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
            raise self._missing([key])
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
        for _, key, state_is_record in self._states():
            if state_is_record:
                yield key

    def failures(self) -> Iterator[Failure]:
        """The keys that have a failure."""
        failed = (key for _, key, state_is_record in self._states() if not state_is_record)
        while chunk := list(islice(failed, _CHUNK)):
            for key, hit in zip(chunk, self._find(chunk, records=False), strict=True):
                if hit is not None and not hit[1].is_record:  # else it got a record meanwhile
                    yield hit[0].failure(key, hit[1])

    def _states(self) -> Iterator[tuple[Snapshot, str, bool]]:
        """(store, key, whether its state is a record) of every key once."""
        for snapshot in self._on_current(lambda: [s for s in self._snapshots if s.resolved() is not None]):
            states = snapshot.keys()
            if len(self._snapshots) == 1:
                yield from ((snapshot, key, is_record(entry.flags)) for key, entry in states)
                continue
            while chunk := list(islice(states, _CHUNK)):
                hits = self._find([key for key, _ in chunk], records=False)
                for (key, entry), hit in zip(chunk, hits, strict=True):
                    if hit is not None and hit[0].path == snapshot.path:
                        yield snapshot, key, is_record(entry.flags)

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

    def _missing(self, keys: Sequence[str]) -> MissingKeys:
        key = keys[0]
        hit = self._look_up([key], records=False)[0]
        if hit is not None and not hit[1].is_record:
            failure = hit[0].failure(key, hit[1])
            hint = f"{key!r} failed: {failure.kind}: {failure.message}"
        else:
            near = difflib.get_close_matches(key, islice(self.keys(), _SUGGESTION_SAMPLE), cutoff=0.7)
            hint = f"near {key!r} are {', '.join(map(repr, near))}" if near else ""
        return MissingKeys(keys, ", ".join(map(str, self.paths)), hint)


def _place(snapshot: Snapshot, state: State) -> tuple[SealedShard, Entry]:
    return snapshot.mapped(state.shard), state.entry


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


def absolute(target: Target) -> list[str]:
    """The target as a list of absolute paths and globs. Raises: UsageError."""
    targets = [os.fspath(item) for item in ([target] if isinstance(target, (str, os.PathLike)) else target)]
    if not targets:
        raise UsageError("no store was given")
    for item in targets:
        if "://" in item:
            raise UsageError(f"{item}: only stores on a local or mounted disk can be opened; copy it there")
    return [os.path.abspath(item) for item in targets]


def resolve_targets(targets: Sequence[str]) -> list[tuple[Path, frozenset[int] | None]]:
    """Each store directory once, with the shards of it that were asked for (None: all). Raises: StoreNotFound."""
    parts: dict[Path, set[int] | None] = {}
    for target in targets:
        matches = [target] if os.path.exists(target) else sorted(glob.glob(target))
        if not matches:
            raise StoreNotFound(f"there is no store at {target}")
        for path in map(Path, matches):
            if path.is_dir():
                parts[path] = None
            elif path.suffix == ".lmdb" and (path.parent / FILE).exists():
                chosen = parts.setdefault(path.parent, set())
                if chosen is not None:
                    chosen |= {s.number for s in Manifest.load(path.parent).shards if s.file == path.name}
            else:
                raise StoreNotFound(f"{path} is neither a store directory nor a shard of one")
    return [(path, chosen if chosen is None else frozenset(chosen)) for path, chosen in parts.items()]


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
