"""The snapshots of one or more stores, and of all states that they have for a key the one that holds."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, islice
from typing import TypeVar

import numpy as np

from .errors import MissingKeys, RoivaultError, StoreMismatch, UsageError
from .index import Index
from .published import Place, take_snapshots
from .snapshot import Snapshot, State
from .states import FAILURE, is_record

CHUNK = 1024
_MANY = 1 << 16  # keys at a time, where a few arrays are all that is made of them
_SUGGESTION_SAMPLE = 5000

T = TypeVar("T")
Hit = tuple[Snapshot, State]


def list_of_keys(keys: Iterable[str]) -> Sequence[str]:
    """The keys that a caller gave, as a list. Raises: UsageError: that is one key, or one of them is not text."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise UsageError(f"keys={keys!r} is not a list of keys")
    keys = list(keys)
    for key in keys:
        if not isinstance(key, str):
            raise UsageError(f"keys are text, {key!r} is {type(key).__name__}")
    return keys


class Lookup:
    """What several stores hold, as they were found last: a key that is not found, or `refresh`, looks at them anew.

    Args:
        parts: each store directory or published store, with the shards of it to read (None: all).
        check: compare the checksums of the indexes.

    Attributes:
        snapshots: one of each store.
        generation: grows when the stores were found changed.

    Raises: StoreNotFound, StoreDamaged; StoreMismatch: they do not fit together.
    """

    def __init__(self, parts: Sequence[tuple[Place, frozenset[int] | None]], check: bool):
        self._parts, self._check = parts, check
        self.generation = 0
        self.snapshots = self._take()

    def _take(self) -> list[Snapshot]:
        self.generation += 1
        while True:
            snapshots = take_snapshots(self._parts, self._check)
            try:
                _refuse_conflicts(snapshots)
                return snapshots
            except FileNotFoundError:
                pass  # what was an open shard was sealed or removed meanwhile

    def refresh(self, asked: bool = True) -> bool:
        """Look at the stores anew; returns whether any has changed. Raises: as the class.

        Args:
            asked: False for a key that was not found: then a published store may be believed for a while.
        """
        changed = any(snapshot.changed(asked) for snapshot in self.snapshots)
        if changed:
            self.snapshots = self._take()
        return changed

    def current(self, look: Callable[[], T]) -> T:
        """What was an open shard may have been sealed or removed meanwhile: then look at the stores as they are now."""
        while True:
            try:
                return look()
            except FileNotFoundError:
                self.snapshots = self._take()

    def find(self, keys: Sequence[str], records: bool = True) -> list[Hit | None]:
        """The state of each key, of the first store that has a record of it, else of the first that has a failure.

        Args:
            records: copy the records of open shards too, not only their failures.
        """
        found = self.current(lambda: self._look_up(keys, records))
        if any(hit is None or not hit[1].is_record for hit in found) and self.refresh(asked=False):
            found = self.current(lambda: self._look_up(keys, records))
        return found

    def _look_up(self, keys: Sequence[str], records: bool) -> list[Hit | None]:
        found: list[Hit | None] = [None] * len(keys)
        left = range(len(keys))
        for snapshot in self.snapshots:
            for i, state in zip(left, snapshot.states([keys[i] for i in left], records), strict=True):
                if state is not None and (found[i] is None or state.is_record):
                    found[i] = snapshot, state
            left = [i for i in left if found[i] is None or not found[i][1].is_record]
            if not left:
                break
        return found

    def places(self, keys: Sequence[str]) -> np.ndarray:
        """Where records lie: see `RegionStore.places`."""
        found = [self._places(keys[start : start + _MANY]) for start in range(0, len(keys), _MANY)]
        return np.concatenate(found) if found else np.empty((0, 3), np.int64)

    def _places(self, keys: Sequence[str]) -> np.ndarray:
        places = self.current(lambda: self._look_up_places(keys))
        if (places[:, 0] < 0).any() and self.refresh(asked=False):
            places = self.current(lambda: self._look_up_places(keys))
        return places

    def _look_up_places(self, keys: Sequence[str]) -> np.ndarray:
        places, left = np.full((len(keys), 3), -1, np.int64), np.arange(len(keys))
        for number, snapshot in enumerate(self.snapshots):
            found = snapshot.places([keys[i] for i in left.tolist()])
            here = (found[:, 0] >= 0) & (found[:, 0] & FAILURE == 0)
            places[left[here], 0] = number
            places[left[here], 1:] = found[here, 1:]
            left = left[~here]
            if not len(left):
                break
        return places

    def record(self, key: str, records: bool = True) -> Hit:
        """The state of a key that has a record. Raises: MissingKeys."""
        hit = self.find(list_of_keys([key]), records)[0]
        if hit is None or not hit[1].is_record:
            raise self.missing([key], hit)
        return hit

    def resolved(self) -> list[tuple[Place, Index]]:
        """The states of every store."""
        return self.current(lambda: [(snapshot.path, snapshot.resolved()) for snapshot in self.snapshots])

    def states(self) -> Iterator[tuple[str, bool]]:
        """(key, whether its state is a record) of every key once."""
        indexes = self.resolved()  # taken at once: an open shard may be sealed while the keys are walked through
        for path, index in indexes:
            states = ((index.text(key), is_record(entry.flags)) for key, entry in index.states())
            if len(indexes) == 1:
                yield from states
                continue
            while chunk := list(islice(states, CHUNK)):
                hits = self.find([key for key, _ in chunk], records=False)
                yield from (
                    state for state, hit in zip(chunk, hits, strict=True) if hit is not None and hit[0].path == path
                )

    def missing(self, keys: Sequence[str], first: Hit | None) -> MissingKeys:
        """The error for keys without a record; `first` is what was found for the first of them."""
        key = keys[0]
        if first is not None:
            failure = first[0].failure(key, first[1])
            hint = f"{key!r} failed: {failure.kind}: {failure.message}"
        else:
            hint = partial(self._near, key)
        return MissingKeys(keys, ", ".join(str(path) for path, _ in self._parts), hint)

    def _near(self, key: str) -> str:
        """Which keys look like `key`, of a sample: those that come first in the indexes, which hashes sort."""
        try:
            indexes = [index for _, index in self.resolved()]
        except RoivaultError:
            return ""  # that a key is missing is to be told in any case
        places = ((index, i) for index in indexes for i, flags in enumerate(index.columns["flags"]) if is_record(flags))
        sample = (index.key(i).decode(errors="replace") for index, i in islice(places, _SUGGESTION_SAMPLE))
        near = difflib.get_close_matches(key, sample, cutoff=0.7)
        return f"near {key!r} are {', '.join(map(repr, near))}" if near else ""


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
                and mine.content != entry.content
            ):  # fmt: skip
                raise StoreMismatch(
                    f"{one.path} and {other.path} hold different records of {a.text(keys[place])!r}: open them one at "
                    "a time; `roivault subset` makes a store without it"
                )
