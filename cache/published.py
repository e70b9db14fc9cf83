"""Stores behind URLs: manifest and indexes are mirrored here, records are read in ranges from where they are.

Several may have the same shard, such as two feature servers: one that does not answer is then stood in for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import xxhash

from .client import ServedFolder
from .client_records import ServedReader
from .errors import RoivaultError, StoreDamaged, StoreUnreachable
from .index import Entry
from .manifest import Shard
from .mirror import Mirror, read_head
from .ranges import Range, RangeReader
from .remote import RemoteFolder
from .snapshot import Snapshot

MISS_SECONDS = 10.0  # for so long a key that is not there is believed to be nowhere
PATIENCE = 3.0  # seconds that a place is tried, where another one has the same
AWAY_SECONDS = 120.0  # for so long it is then not asked again

Place = Path | RemoteFolder  # of a store


class RemoteShard:
    """A sealed shard behind a URL. What is read of it is compared with the checksums of its index each time.

    Attributes:
        path: how messages name it.
        replicas: the same shard elsewhere.
        away_until: when to ask here again, if a replica was asked instead.
    """

    def __init__(self, folder: RemoteFolder, shard: Shard, reader: RangeReader, check: bool):
        self.path, self._shard, self._reader, self._check = folder / shard.file, shard, reader, check
        self.replicas: list[RemoteShard] = []
        self.away_until = 0.0

    def read(self, entry: Entry) -> memoryview:
        """The value in memory of its own. Raises: StoreDamaged, StoreUnreachable, DiskError."""
        return read_remote([(self, entry)])[0]

    value = read

    def is_new(self, entry: Entry) -> bool:
        """Each transfer is: bytes may be lost on any."""
        return True

    def mark(self, entry: Entry) -> None:
        """Nothing is to be remembered."""

    def answering(self) -> RemoteShard:
        """Where to ask: here, unless that failed a moment ago and a replica did not."""
        if not self.away_until:
            return self
        now = time.monotonic()
        return next((shard for shard in (self, *self.replicas) if shard.away_until <= now), self)

    def range_of(self, entry: Entry) -> Range:
        """Raises: StoreDamaged."""
        if entry.offset + entry.length > self._shard.bytes:
            raise StoreDamaged(self.path, f"its index points to {entry.offset + entry.length}, behind its end")
        return Range(self._shard.file, entry.offset, entry.length)


def read_remote(places: Sequence[tuple[RemoteShard, Entry]]) -> list[memoryview]:
    """The bytes of values, several at once, neighbours together. Raises: StoreDamaged, StoreUnreachable, DiskError."""
    values: list[memoryview | None] = [None] * len(places)
    here = [(shard.answering(), entry) for shard, entry in places]
    for reader, which in _by_reader(here).items():
        ranges = [here[i][0].range_of(here[i][1]) for i in which]
        try:
            found = reader.read(ranges)
        except StoreUnreachable as error:
            found = _read_elsewhere([here[i] for i in which], error)
        for i, one, value in zip(which, ranges, found, strict=True):
            shard, entry = here[i]
            if shard._check and xxhash.xxh3_64_intdigest(value) != entry.checksum:
                value = reader.read_anew(one)  # altered on its way, perhaps; if not, whoever decodes it finds out
            values[i] = value
    return values


def _read_elsewhere(places: Sequence[tuple[RemoteShard, Entry]], error: StoreUnreachable) -> list[memoryview]:
    """What a place that does not answer should have told."""
    for shard, _ in places:
        shard.away_until = time.monotonic() + AWAY_SECONDS
    if alone := sum(shard.answering() is shard for shard, _ in places):
        raise StoreUnreachable(f"{error}; {alone:,} of the {len(places):,} keys asked for there are nowhere else")
    return read_remote(places)


def read_ahead(places: Sequence[tuple[RemoteShard, Entry]]) -> None:
    """Begin to read values. Raises: StoreDamaged."""
    places = [(shard.answering(), entry) for shard, entry in places]
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
        self._folder, self._mirror, self._check = folder, Mirror(folder), check
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
        served = isinstance(self._folder, ServedFolder)
        self._reader = ServedReader(self._folder, self.manifest) if served else RangeReader(self._folder)

    def mapped(self, number: int) -> RemoteShard:
        found = self._mapped.get(number)
        if found is None:
            found = self._mapped[number] = RemoteShard(self._folder, self.shard(number), self._reader, self._check)
        return found

    def know(self, replicas: Mapping[str, Sequence[RemoteShard]], away: StoreUnreachable | None) -> None:
        """Learn where else its shards are, by their checksums.

        Args:
            away: this place was tried and does not answer.

        Raises: StoreUnreachable: that, if it has what no other place has.
        """
        lost = 0
        for shard in self.manifest.sealed:
            own = self.mapped(shard.number)
            own.replicas = [other for other in replicas.get(shard.checksum, ()) if other is not own]
            if away:
                own.away_until = time.monotonic() + AWAY_SECONDS
                lost += 0 if own.replicas else shard.records
        if lost:
            raise StoreUnreachable(f"{away}; {lost:,} records are nowhere else")
        if self.manifest.sealed and all(self.mapped(shard.number).replicas for shard in self.manifest.sealed):
            self._folder.patience = PATIENCE


class RememberedSnapshot(PublishedSnapshot):
    """As the mirror has it, of a store that cannot be reached."""

    def _signature(self) -> bytes:
        if hasattr(self, "signature"):
            return super()._signature()
        self._looked = time.monotonic()
        return self._mirror.head()


def take_snapshots(parts: Sequence[tuple[Place, frozenset[int] | None]], check: bool) -> list[Snapshot]:
    """One of each place, with the shards of it to read (None: all).

    Raises: StoreNotFound, StoreDamaged; StoreUnreachable: it does not answer, and has what no other place has.
    """
    snapshots: list[Snapshot] = []
    away: dict[int, StoreUnreachable] = {}
    for place, shards in parts:
        if not isinstance(place, RemoteFolder):
            snapshots.append(Snapshot(place, check, shards))
            continue
        try:
            snapshots.append(PublishedSnapshot(place, check, shards))
        except StoreUnreachable as error:
            away[len(snapshots)] = error
            snapshots.append(_remembered(place, check, shards, error))
    replicas: dict[str, list[RemoteShard]] = {}
    for number, snapshot in enumerate(snapshots):
        if isinstance(snapshot, PublishedSnapshot) and number not in away:
            for shard in snapshot.manifest.sealed:
                replicas.setdefault(shard.checksum, []).append(snapshot.mapped(shard.number))
    for number, snapshot in enumerate(snapshots):
        if isinstance(snapshot, PublishedSnapshot):
            snapshot.know(replicas, away.get(number))
    return snapshots


def _remembered(
    folder: RemoteFolder, check: bool, shards: frozenset[int] | None, error: StoreUnreachable
) -> RememberedSnapshot:
    try:
        return RememberedSnapshot(folder, check, shards)
    except (RoivaultError, OSError):
        raise error from None  # it is not known here
