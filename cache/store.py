"""Reading stores: keys in, Regions out."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .errors import MissingKeys, StoreNotFound, UsageError
from .manifest import FILE, Manifest, signature
from .record import decode
from .regions import Failure, Regions
from .snapshot import Snapshot, State, decode_failure

VERIFY = ("first", "always", "never")
_SUGGESTION_SAMPLE = 5000


class RegionStore:
    """One or more stores, read as one. Made by `open_store`.

    A snapshot of the manifests: a key that is not found, or `refresh()`, looks for newer ones. Safe to share between
    threads, to inherit through a fork and to pickle (the other process opens the store anew).

    Attributes:
        paths: the store directories.
    """

    def __init__(self, targets: Sequence[str], verify: str):
        self._targets, self._verify = tuple(targets), verify
        self._parts = _resolve_targets(self._targets)
        self.paths = [path for path, _ in self._parts]
        self._snapshots = self._take_snapshots()

    def __reduce__(self) -> tuple:
        return open_store, (list(self._targets),), {"_verify": self._verify}

    def __repr__(self) -> str:
        return f"RegionStore({', '.join(map(str, self.paths))}: {len(self)} records)"

    def _take_snapshots(self) -> list[Snapshot]:
        return [Snapshot(path, self._verify != "never", shards) for path, shards in self._parts]

    def refresh(self) -> bool:
        """Look at the stores anew; returns whether any has changed."""
        changed = any(s.signature != signature(s.path) for s in self._snapshots)
        if changed:
            self._snapshots = self._take_snapshots()
        return changed

    @property
    def manifest(self) -> Manifest:
        """Of the first store."""
        return self._snapshots[0].manifest

    @property
    def manifests(self) -> list[Manifest]:
        return [snapshot.manifest for snapshot in self._snapshots]

    # -- records

    def __getitem__(self, key: str) -> Regions:
        return self.get_many([key])[0]

    def get(self, key: str, default: Any = None) -> Regions | Any:
        found = self.get_many([key], missing="skip")
        return found[0] if found else default

    def get_many(self, keys: Sequence[str], missing: str = "raise") -> list[Regions]:
        """The regions of `keys`, in their order.

        Args:
            missing: "raise", or "skip" to leave out keys that have no record.

        Raises:
            MissingKeys: names all of them.
            CorruptRecord, StoreDamaged
        """
        if missing not in ("raise", "skip"):
            raise UsageError(f"missing={missing!r} is not 'raise' or 'skip'")
        found = self._find(keys)
        lost = [key for key, hit in zip(keys, found) if hit is None or not hit[1].is_record]
        if lost and missing == "raise":
            raise MissingKeys(lost, ", ".join(map(str, self.paths)), self._hint(lost[0]))
        return [
            self._decode(key, *hit) for key, hit in zip(keys, found) if hit is not None and hit[1].is_record
        ]

    def _decode(self, key: str, snapshot: Snapshot, state: State) -> Regions:
        if state.entry is None:
            return decode(key, state.value, check=self._verify != "never")
        shard = snapshot.sealed(state.shard)
        check = self._verify == "always" or (self._verify == "first" and shard.first_read(state.entry))
        regions = decode(key, shard.value(state.entry), check)
        if check:
            shard.verified(state.entry)
        return regions

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        hit = self._find([key], values=False)[0]
        return hit is not None and hit[1].is_record

    def location(self, key: str) -> tuple[str, int | None, int | None]:
        """Shard name, byte offset and length of a record; the latter are None while its shard is open.

        Raises: MissingKeys.
        """
        hit = self._find([key], values=False)[0]
        if hit is None or not hit[1].is_record:
            raise MissingKeys([key], ", ".join(map(str, self.paths)), self._hint(key))
        snapshot, state = hit
        entry = state.entry
        return snapshot.shard(state.shard).name, entry and entry.offset, entry and entry.length

    def prefetch(self, keys: Sequence[str]) -> None:
        """Ask the system to read the records of `keys` ahead; unknown keys are ignored."""
        for hit in self._find(keys, values=False):
            if hit is not None and hit[1].entry is not None:
                hit[0].sealed(hit[1].shard).prefetch(hit[1].entry)

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
        for key, is_record, _ in self._states():
            if is_record:
                yield key

    def failures(self) -> Iterator[Failure]:
        """The keys that have a failure."""
        for key, is_record, snapshot in self._states():
            if not is_record:
                (state,) = snapshot.states([key])
                yield decode_failure(key, snapshot.value(state))

    def _states(self) -> Iterator[tuple[str, bool, Snapshot]]:
        """Every key once: of several stores the first that has a record of it, else the first that has a failure."""
        snapshots = self._on_current(lambda: [s for s in self._snapshots if s.resolved() is not None])
        for place, snapshot in enumerate(snapshots):
            others = snapshots[:place] + snapshots[place + 1 :]
            for key, entry in snapshot.keys():
                is_record = not entry.flags & 1
                if others and self._held_elsewhere(key, is_record, snapshots[:place], snapshots[place + 1 :]):
                    continue
                yield key, is_record, snapshot

    @staticmethod
    def _held_elsewhere(key: str, is_record: bool, earlier: list[Snapshot], later: list[Snapshot]) -> bool:
        before = [state for s in earlier if (state := s.states([key], values=False)[0])]
        after = [state for s in later if (state := s.states([key], values=False)[0])]
        if is_record:
            return any(state.is_record for state in before)
        return bool(before) or any(state.is_record for state in after)

    # -- lookups

    def _find(self, keys: Sequence[str], values: bool = True) -> list[tuple[Snapshot, State] | None]:
        found = self._on_current(lambda: self._look_up(keys, values))
        if any(hit is None for hit in found) and self.refresh():
            found = self._on_current(lambda: self._look_up(keys, values))
        return found

    def _look_up(self, keys: Sequence[str], values: bool) -> list[tuple[Snapshot, State] | None]:
        found: list[tuple[Snapshot, State] | None] = [None] * len(keys)
        for snapshot in self._snapshots:
            left = [i for i, hit in enumerate(found) if hit is None or not hit[1].is_record]
            if not left:
                break
            for i, state in zip(left, snapshot.states([keys[i] for i in left], values)):
                if state is not None and (found[i] is None or state.is_record):
                    found[i] = snapshot, state
        return found

    def _on_current(self, look: Callable[[], Any]) -> Any:
        """A shard that was open may have been sealed or removed meanwhile: look again at the stores as they are now."""
        while True:
            try:
                return look()
            except FileNotFoundError:
                self._snapshots = self._take_snapshots()

    def _hint(self, key: str) -> str:
        """Why a key may not be there."""
        hit = self._look_up([key], True)[0]
        if hit is not None:
            failure = decode_failure(key, hit[0].value(hit[1]))
            return f"extraction failed: {failure.kind}: {failure.message}"
        near = difflib.get_close_matches(key, islice(self.keys(), _SUGGESTION_SAMPLE), n=3, cutoff=0.7)
        return f"near keys: {', '.join(map(repr, near))}" if near else ""


def open_store(
    target: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    token: str | None = None,
    tls_ca: str | None = None,
    verify: str = "first",
) -> RegionStore:
    """Open stores for reading.

    Args:
        target: a store directory, shard files of one, a glob, or a list of these: they are read as one.
        verify: compare the checksum of a record each time it is read ("always"), the first time in this process
            ("first"), or not ("never").

    Raises:
        StoreNotFound, StoreDamaged, StoreMismatch, UsageError
    """
    if verify not in VERIFY:
        raise UsageError(f"verify={verify!r} is not one of {', '.join(VERIFY)}")
    targets = [target] if isinstance(target, (str, os.PathLike)) else list(target)
    if not targets:
        raise UsageError("no store was given")
    for item in map(str, targets):
        if "://" in item:
            raise UsageError(f"{item}: only local stores can be opened; copy it here or mount it")
    if token or tls_ca:
        raise UsageError("token and tls_ca are for a server, and the target is a local store")
    return RegionStore([str(item) for item in targets], verify)


def _resolve_targets(targets: Sequence[str]) -> list[tuple[Path, frozenset[int] | None]]:
    """Each store directory once, with the shards of it that were asked for (None: all)."""
    parts: dict[Path, set[int] | None] = {}
    for target in targets:
        matches = [target] if os.path.exists(target) else sorted(glob.glob(target))
        if not matches:
            raise StoreNotFound(f"there is no store at {target}")
        for path in map(Path, matches):
            if path.suffix == ".lmdb" and (path.parent / FILE).exists():
                numbers = parts.setdefault(path.parent, set())
                if numbers is not None:
                    numbers.add(int(path.stem.rpartition("-")[2]))
            else:
                parts[path] = None
    return [(path, None if numbers is None else frozenset(numbers)) for path, numbers in parts.items()]
