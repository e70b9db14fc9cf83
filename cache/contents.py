"""What there is to look into: the records of stores, of a cache of another system, or of a dictionary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from .errors import DataError, UsageError
from .formats import format_of, rows_of
from .formats.base import Format, Notes, Problem
from .regions import Regions
from .store import RegionStore, open_store
from .targets import Target, is_store

_BATCH = 64


class Contents:
    """Records that come one after the other; what cannot be read is a `Problem` among them.

    Attributes:
        name: what it is called in reports.
        format: "store", or a name of cache/formats.
        vocabularies: names of "classes" and "attributes", where there are any.
        choices: how it was made, as its manifest tells; empty when it does not.
    """

    name: str = ""
    format: str = ""
    vocabularies: Mapping[str, Sequence[str]] = {}
    choices: Mapping[str, Any] = {}

    def records(self, sample: int | None = None) -> Iterator[Regions | Problem]:
        """All, or `sample` of them: the same ones each time."""
        raise NotImplementedError

    def count(self) -> int | None:
        """Number of records; None when only reading all of them would tell."""
        return None

    def record_bytes(self, record: Regions | Problem) -> int | None:
        """What a record occupies; None where that cannot be told."""
        return None


class KeyedContents(Contents):
    """Contents that find records by their keys too."""

    def keys(self) -> Iterator[str]:
        raise NotImplementedError

    def find(self, keys: Sequence[str]) -> list[Regions | Problem | None]:
        """The record of each key, None where there is none."""
        raise NotImplementedError

    def has(self, keys: Sequence[str]) -> list[bool]:
        """Whether there is a record, of each key."""
        raise NotImplementedError

    def chosen(self, sample: int | None) -> Iterable[str]:
        """The keys of a sample: those with the smallest hashes."""
        return self.keys() if sample is None else nsmallest(sample, self.keys(), _rank)

    def records(self, sample: int | None = None) -> Iterator[Regions | Problem]:
        keys = iter(self.chosen(sample))
        while batch := list(islice(keys, _BATCH)):
            yield from (found for found in self.find(batch) if found is not None)


class StoreContents(KeyedContents):
    """Stores, read as one: a store, or what `open_store` takes. Raises: what that raises."""

    format = "store"

    def __init__(self, target: Target | RegionStore):
        self.store = target if isinstance(target, RegionStore) else open_store(target)
        self.name = ", ".join(map(str, self.store.paths))
        self.vocabularies = self.store.manifest.vocabularies
        self.choices = self.store.manifest.fingerprint or {}

    def count(self) -> int:
        return len(self.store)

    def record_bytes(self, record: Regions | Problem) -> int | None:
        return None if isinstance(record, Problem) else self.store.location(record.key)[2]

    def keys(self) -> Iterator[str]:
        return self.store.keys()

    def has(self, keys: Sequence[str]) -> list[bool]:
        return (self.store.places(keys)[:, 0] >= 0).tolist()

    def find(self, keys: Sequence[str]) -> list[Regions | Problem | None]:
        try:
            found = {regions.key: regions for regions in self.store.get_many(keys, missing="skip")}
            return [found.get(key) for key in keys]
        except DataError:
            return [self._one(key) for key in keys]

    def _one(self, key: str) -> Regions | Problem | None:
        try:
            return self.store.get(key)
        except DataError as error:
            return Problem(f"record {key!r}", str(error), key)


class ForeignContents(Contents):
    """The cache of another system, which can only be read from its beginning to its end."""

    def __init__(self, path: Path, layout: Format):
        self.path, self.layout = path, layout
        self.name, self.format = str(path), layout.name
        self.vocabularies = layout.vocabularies(path) if layout.vocabularies else {}

    def records(self, sample: int | None = None) -> Iterator[Regions | Problem]:
        """A sample is the first ones, since all before a record have to be read."""
        return islice(rows_of(self.path, self.layout, Notes()), sample)


class HeldContents(KeyedContents):
    """Records that are in memory, by key."""

    format = "memory"

    def __init__(self, name: str, held: Mapping[str, Regions], vocabularies: Mapping[str, Sequence[str]], choices=None):
        self.name, self.vocabularies, self.choices = name, vocabularies, choices or {}
        self._held = held

    def count(self) -> int:
        return len(self._held)

    def keys(self) -> Iterator[str]:
        return iter(self._held)

    def has(self, keys: Sequence[str]) -> list[bool]:
        return [key in self._held for key in keys]

    def find(self, keys: Sequence[str]) -> list[Regions | Problem | None]:
        return [self._held.get(key) for key in keys]


def open_contents(targets: Sequence[str | os.PathLike], layout: str | None = None) -> Contents:
    """Stores, or one cache of another system.

    Args:
        targets: as for `open_store`, or the path of one foreign cache.
        layout: a name of cache/formats when its content does not tell; "store" for stores.

    Raises:
        UsageError: it is nothing that can be read, or several foreign caches.
        InputNotFound, StoreDamaged, StoreMismatch, DataError
    """
    stores = layout == "store" or (
        layout is None and any(is_store(target) or not os.path.exists(target) for target in targets)  # or a pattern
    )
    if stores:
        return StoreContents(targets)
    if len(targets) > 1:
        raise UsageError("several caches of another system: give one of them, or `roivault convert` each to a store")
    path = Path(targets[0])
    return ForeignContents(path, format_of(path, layout))


def _rank(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode(errors="surrogatepass"))
