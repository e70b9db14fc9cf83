"""Published stores: manifest and indexes are mirrored here, records are read in ranges from where they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import xxhash

from .errors import StoreDamaged, StoreUnreachable
from .index import Entry
from .manifest import Shard
from .mirror import Mirror, read_head
from .ranges import Range, RangeReader
from .remote import RemoteFolder
from .snapshot import Snapshot

MISS_SECONDS = 10.0  # for so long a key that is not there is believed to be nowhere

Place = Path | RemoteFolder  # of a store


class RemoteShard:
    """A sealed shard behind a URL. What is read of it is compared with the checksums of its index each time.

    Attributes:
        path: how messages name it.
    """

    def __init__(self, folder: RemoteFolder, shard: Shard, reader: RangeReader, check: bool):
        self.path, self._shard, self._reader, self._check = folder / shard.file, shard, reader, check

    def read(self, entry: Entry) -> memoryview:
        """The value in memory of its own. Raises: StoreDamaged, StoreUnreachable, DiskError."""
        return read_remote([(self, entry)])[0]

    value = read

    def is_new(self, entry: Entry) -> bool:
        """Each transfer is: bytes may be lost on any."""
        return True

    def mark(self, entry: Entry) -> None:
        """Nothing is to be remembered."""

    def range_of(self, entry: Entry) -> Range:
        """Raises: StoreDamaged."""
        if entry.offset + entry.length > self._shard.bytes:
            raise StoreDamaged(self.path, f"its index points to {entry.offset + entry.length}, behind its end")
        return Range(self._shard.file, entry.offset, entry.length)


def read_remote(places: Sequence[tuple[RemoteShard, Entry]]) -> list[memoryview]:
    """The bytes of values, several at once, neighbours together. Raises: StoreDamaged, StoreUnreachable, DiskError."""
    values: list[memoryview | None] = [None] * len(places)
    for reader, which in _by_reader(places).items():
        ranges = [places[i][0].range_of(places[i][1]) for i in which]
        for i, one, value in zip(which, ranges, reader.read(ranges), strict=True):
            shard, entry = places[i]
            if shard._check and xxhash.xxh3_64_intdigest(value) != entry.checksum:
                (value,) = reader.read([one])  # altered on its way, perhaps; if not, whoever decodes it finds out
            values[i] = value
    return values


def read_ahead(places: Sequence[tuple[RemoteShard, Entry]]) -> None:
    """Begin to read values. Raises: StoreDamaged."""
    for reader, which in _by_reader(places).items():
        reader.read_ahead([places[i][0].range_of(places[i][1]) for i in which])


def _by_reader(places: Sequence[tuple[RemoteShard, Entry]]) -> dict[RangeReader, list[int]]:
    which: dict[RangeReader, list[int]] = {}
    for i, (shard, _) in enumerate(places):
        which.setdefault(shard._reader, []).append(i)
    return which


class PublishedSnapshot(Snapshot):
    """One manifest of a published store. Its open shards, if it says it has some, are no part of what is published."""

    def __init__(self, folder: RemoteFolder, check: bool = True, shards: frozenset[int] | None = None):
        self._folder, self._mirror, self._reader, self._check = folder, Mirror(folder), RangeReader(folder), check
        super().__init__(folder, check, shards)

    def _signature(self) -> bytes:
        self._looked = time.monotonic()
        return read_head(self._folder)

    def changed(self, asked: bool) -> bool:
        if asked:
            return super().changed(asked)
        try:
            return time.monotonic() - self._looked > MISS_SECONDS and super().changed(asked)
        except StoreUnreachable:
            return False  # what is known holds; a key that is not there is no reason to fail

    def _take(self, check: bool, shards: frozenset[int] | None) -> None:
        manifest = self._mirror.manifest(self.signature)
        published = {shard.number for shard in manifest.sealed}
        self.manifest = manifest.only(published if shards is None else published & shards)
        self.merged, self.unmerged = self._mirror.indexes(self.manifest, check)
        self._sizes = {shard.number: shard.bytes for shard in self.manifest.sealed}
        self.open = {}

    def mapped(self, number: int) -> RemoteShard:
        found = self._mapped.get(number)
        if found is None:
            found = self._mapped[number] = RemoteShard(self._folder, self.shard(number), self._reader, self._check)
        return found


def take_snapshot(place: Place, check: bool, shards: frozenset[int] | None) -> Snapshot:
    """Of a store directory or of a published store. Raises: StoreNotFound, StoreDamaged, StoreUnreachable."""
    return (PublishedSnapshot if isinstance(place, RemoteFolder) else Snapshot)(place, check, shards)
