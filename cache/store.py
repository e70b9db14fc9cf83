"""Reading stores: keys in, Regions out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from .client_access import Access, is_served
from .cold import available_memory, read_values
from .errors import CorruptRecord, UsageError, require_one_of
from .lookup import CHUNK, Hit, Lookup, list_of_keys
from .manifest import Manifest
from .published import RemoteShard, read_ahead
from .record import decode
from .regions import Failure, Regions
from .remote import RemoteFolder
from .shard import SealedShard
from .snapshot import Snapshot, State
from .states import encode_failure, is_record
from .targets import Target, absolute, parts_of, resolve_targets

VERIFY = ("first", "always", "never")
READ = ("auto", "mmap", "pread")
MISSING = ("raise", "skip")

T = TypeVar("T")


class RegionStore:
    """One or more stores, read as one. Made by `open_store`.

    A snapshot of the manifests: a key that is not found, or `refresh()`, looks for newer ones. May be shared between
    threads, inherited through a fork, and pickled (the other process opens the stores anew).

    Arrays of records in sealed shards are read-only views that keep the file mapped; those of open shards, and of
    published stores and whatever is read together with them, are copies.
    Both stay valid whatever becomes of the store object or the writer.

    Attributes:
        paths: the store directories; in the place of a published store its `RemoteFolder`.
        verify: when checksums are compared: "always", "first" or "never".
    """

    def __init__(self, target: Target, verify: str, access: Access | None = None):
        self._targets, self.verify, self._access = absolute(target), verify, access
        self._parts = resolve_targets(self._targets, access)
        self.paths = [path for path, _ in self._parts]
        self._in_memory: bool | None = None
        self._lookup = Lookup(self._parts, verify != "never")

    def __reduce__(self) -> tuple:
        return RegionStore, (self._targets, self.verify, self._access)

    def __repr__(self) -> str:
        return f"RegionStore({', '.join(map(str, self.paths))}: {len(self)} records)"

    def refresh(self) -> bool:
        """Look at the stores anew; returns whether any has changed.

        Raises: StoreNotFound, StoreDamaged; StoreMismatch: they do not fit together any more.
        """
        return self._lookup.refresh()

    @property
    def generation(self) -> int:
        """Grows when the stores were found changed."""
        return self._lookup.generation

    @property
    def manifest(self) -> Manifest:
        """Of the first store."""
        return self._lookup.snapshots[0].manifest

    @property
    def manifests(self) -> list[Manifest]:
        """Of every store, in the order of `paths`."""
        return [snapshot.manifest for snapshot in self._lookup.snapshots]

    def apart(self) -> list[RegionStore]:
        """Each of the stores on its own, with the same shards. Raises: StoreNotFound, StoreDamaged."""
        parts = zip(self._parts, self.manifests, strict=True)
        return [
            RegionStore(parts_of(place, chosen and [s.file for s in manifest.shards]), self.verify, self._access)
            for (place, chosen), manifest in parts
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
            UsageError: `keys` are not a list of texts.
            CorruptRecord, StoreDamaged, DiskError
        """
        require_one_of("missing", missing, MISSING)
        require_one_of("read", read, READ)
        keys = list_of_keys(keys)
        found = self._lookup.find(keys)
        lost = [i for i, hit in enumerate(found) if hit is None or not hit[1].is_record]
        if lost and missing == "raise":
            raise self._lookup.missing([keys[i] for i in lost], found[lost[0]])
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

    @property
    def is_remote(self) -> bool:
        """Whether a published or a served store is among them."""
        return any(isinstance(path, RemoteFolder) for path in self.paths)

    def reads_mapped(self, read: str) -> bool:
        """Whether `get_many(read=read)` gives views of mapped files; never where a published store is among them."""
        if self.is_remote:
            return False
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
        try:
            regions = decode(key, value, check)
        except CorruptRecord as error:
            raise CorruptRecord(key, f"{error.why} ({shard.path}, byte {state.entry.offset})") from None
        if check:
            shard.mark(state.entry)
        return regions

    def record(self, key: str) -> bytes | memoryview:
        """The stored bytes of a record, checked as `verify` says. Raises: MissingKeys, CorruptRecord, StoreDamaged."""
        hit = self._lookup.record(key)
        value = hit[0].value(hit[1])
        self._decode(key, *hit, value)
        return value

    def stored(self, key: str) -> tuple[bool, bytes | memoryview]:
        """Whether the state of a key is a record, and the bytes of the state, checked as `verify` says.

        Raises: MissingKeys: it has none; CorruptRecord, StoreDamaged.
        """
        hit = self._lookup.find([key])[0]
        if hit is None:
            raise self._lookup.missing([key], None)
        if hit[1].is_record:
            return True, self.record(key)
        return False, encode_failure(hit[0].failure(key, hit[1]))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and is_record((hit := self._lookup.find([key], False)[0]) and hit[1].flags)

    def location(self, key: str) -> tuple[str, int | None, int | None]:
        """Shard name, byte offset and length of a record; the latter are None while its shard is open.

        Raises: MissingKeys.
        """
        snapshot, (_, shard, entry, _) = self._lookup.record(key, records=False)
        return snapshot.shard(shard).name, entry and entry.offset, entry and entry.length

    def places(self, keys: Sequence[str]) -> np.ndarray:
        """Where records lie, to read them in the order of the disk.

        Returns: i64 [len(keys), 3], place in `paths`, shard number and byte offset, the latter -1 while the shard is
            open; all three are -1 for a key that has no record.
        """
        return self._lookup.places(list_of_keys(keys))

    def sealed_shard(self, place: Sequence[int]) -> SealedShard:
        """The file of a row of `places`."""
        return self._lookup.snapshots[place[0]].mapped(place[1])

    def prefetch(self, keys: Sequence[str]) -> None:
        """Ask the system to read the records of `keys` ahead; keys that are not in a sealed shard are ignored."""
        self._prefetch(self._lookup.find(list_of_keys(keys), records=False))

    def _prefetch(self, hits: Sequence[Hit | None]) -> None:
        sealed = [hit for hit in hits if hit is not None and hit[1].entry is not None]
        places = [(snapshot.mapped(state.shard), state.entry) for snapshot, state in sealed]
        read_ahead([place for place in places if isinstance(place[0], RemoteShard)])
        for shard, entry in places:
            if isinstance(shard, SealedShard):
                shard.prefetch(entry)

    # -- listings

    def __len__(self) -> int:
        """Number of records."""
        if len(self._lookup.snapshots) == 1:
            return self._lookup.current(lambda: self._lookup.snapshots[0].resolved().records)
        return sum(1 for _ in self.keys())

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """The keys that have a record, in storage order."""
        for key, state_is_record in self._lookup.states():
            if state_is_record:
                yield key

    def states(self) -> Iterator[tuple[str, bool]]:
        """Every key, and whether its state is a record, in storage order."""
        return self._lookup.states()

    def holds(self, keys: Sequence[str]) -> Iterator[bool | None]:
        """Whether the state of each key is a record; None where it has no state."""
        for start in range(0, len(keys), CHUNK):
            for hit in self._lookup.find(keys[start : start + CHUNK], records=False):
                yield hit and hit[1].is_record

    def failures(self) -> Iterator[Failure]:
        """The keys that have a failure."""
        failed = (key for key, state_is_record in self._lookup.states() if not state_is_record)
        while chunk := list(islice(failed, CHUNK)):
            hits = self._lookup.find(chunk, records=False)
            self._prefetch(hits)
            for key, hit in zip(chunk, hits, strict=True):
                if hit is not None and not hit[1].is_record:  # else it got a record meanwhile
                    yield hit[0].failure(key, hit[1])


def open_store(
    target: Target,
    *,
    token: str | None = None,
    tls_ca: str | None = None,
    verify: str = "first",
) -> RegionStore:
    """Open stores for reading.

    Args:
        target: a store directory, shard files of one, a glob, the URL of a published store (s3://, https://, hf://,
            file:// and what else fsspec knows) or of a feature server (grpc://HOST:PORT, or grpc+tls:// through TLS,
            with /NAME where it has several stores), or a list of these, which are read as one. When several stores have
            a record of a key, it must be the same in all of them; of two servers that have the same shard, one stands
            in for the other. Servers may be given as one text, too: grpc://HOST:PORT,HOST:PORT/NAME.
        token, tls_ca: for feature servers only; defaults are $ROIVAULT_TOKEN and $ROIVAULT_TLS_CA, a file of the
            certificates to trust. $ROIVAULT_TLS_CERT and $ROIVAULT_TLS_KEY are the files of a client's certificate.
        verify: compare the checksum of a record each time it is read ("always"), the first time it is read in this
            process ("first"), or not ("never"). Checksums of indexes are compared now, those of large ones when a key
            is not found or all keys are listed: a key that is found proves itself.

    Raises:
        StoreNotFound, StoreDamaged, UsageError
        StoreUnreachable: a URL that did not answer in time.
        DiskError: a server that wants another token, or whose certificate is not trusted.
        StoreMismatch: the stores do not fit together.
    """
    require_one_of("verify", verify, VERIFY)
    targets = absolute(target)
    if (token or tls_ca) and not any(map(is_served, targets)):
        raise UsageError("token and tls_ca are for a server, grpc://HOST:PORT, which the target is not")
    return RegionStore(targets, verify, Access(token, tls_ca))
