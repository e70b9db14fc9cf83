"""Publishing: the sealed shards of a store, and then what names them, copied to where others read them by URL.

A shard file goes first, its index behind it, which thus says that the shard is whole; the merged index and the manifest
go last. So a reader never sees a manifest that names a missing file, and what was interrupted goes on where it ended.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from .errors import DataError, StoreDamaged, StoreLocked, StoreMismatch, StoreNotFound
from .index import FILE as MERGED_INDEX
from .index import HEADER_BYTES, Index
from .manifest import FILE as MANIFEST
from .manifest import Manifest, Shard
from .mirror import read_manifest
from .opening import differences
from .remote import BLOCK, RemoteFolder
from .remote_lock import RemoteLock
from .snapshot import load_index, load_merged

_THREADS = 8

Report = Callable[[int], None]  # told how many bytes more are done


@dataclass
class PublishReport:
    """What `publish` did.

    Attributes:
        store, url: from where, to where.
        shards: that are published now.
        copied, kept: how many of them were copied now, and were there already.
        bytes: that were copied, of shards and their indexes.
        verified: whether all of them were read back.
    """

    store: str
    url: str
    shards: int = 0
    copied: int = 0
    kept: int = 0
    bytes: int = 0
    verified: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Publisher:
    """Copies a store directory to a URL, one sealed shard at a time.

    Args:
        store: the directory; files of shards that are published already may be missing in it.

    Attributes:
        there: the manifest at the URL; None before there is one.

    Raises:
        UsageError: nothing can be written there.
        StoreMismatch: a store is written there in place.
        StoreDamaged, StoreUnreachable, DiskError
    """

    def __init__(self, store: Path, folder: RemoteFolder):
        folder.check_writable()
        self._store, self._folder = store, folder
        self.there = manifest_at(folder)
        if self.there is not None and self.there.open:
            raise StoreMismatch(
                f"{folder} has an open shard, {self.there.open[0].name}: it is a store that is written in place, by "
                "its path; give another URL, or publish from there"
            )

    def check_fits(self, manifest: Manifest) -> None:
        """See that what is there already is a part of the store. Raises: StoreMismatch: names what differs."""
        if self.there is None or not self.there.shards:
            return
        found = differences(self.there, manifest, (f"at {self._folder}", f"in {self._store}"))
        mine = {shard.number: shard for shard in manifest.sealed}
        for shard in self.there.sealed:
            own = mine.get(shard.number)
            if own is None or (own.checksum, own.index_checksum) != (shard.checksum, shard.index_checksum):
                found.append(f"{shard.name} there is {'not in the store' if own is None else 'another one'}")
        if found:
            raise StoreMismatch(
                f"{self._folder} is not an earlier state of {self._store}: {'; '.join(found[:8])}; give another URL, "
                "or remove what is there"
            )

    def is_registered(self, shard: Shard) -> bool:
        return self.there is not None and shard.number in {other.number for other in self.there.sealed}

    def is_whole(self, shard: Shard) -> bool:
        """Whether a shard was copied there whole: its index goes behind it."""
        same = self._has_index(self._store / shard.index_file)
        return same and self._folder.size(shard.file) == shard.bytes

    def _has_index(self, file: Path) -> bool:
        """Whether an index of that name is there and the same: headers have the checksums."""
        with open(file, "rb") as index:
            head = index.read(HEADER_BYTES)
        try:
            return self._folder.read(file.name, 0, HEADER_BYTES) == head
        except FileNotFoundError:
            return False

    def copy(self, shard: Shard, report: Report = lambda count: None) -> None:
        """Copy a shard and its index.

        Raises: StoreDamaged: the files here, or there afterwards, are not whole; StoreUnreachable, DiskError.
        """
        file = self._store / shard.file
        load_index(self._store, shard)
        if not file.exists() or file.stat().st_size != shard.bytes:
            raise StoreDamaged(file, f"it is missing, or has not the {shard.bytes} bytes that the manifest says")
        self._folder.remove(shard.index_file)
        self._folder.upload(shard.file, file, report)
        self._folder.upload(shard.index_file, self._store / shard.index_file, report)
        if not self.is_whole(shard):
            raise StoreDamaged(self._folder / shard.file, "it is not whole after it was copied", "publish again")

    def read_back(self, shard: Shard, report: Report = lambda count: None) -> None:
        """Compare the bytes that are there with the checksum. Raises: StoreDamaged, StoreUnreachable."""
        digest = xxhash.xxh3_64()
        for start in range(0, shard.bytes, BLOCK):
            data = self._folder.read(shard.file, start, min(start + BLOCK, shard.bytes))
            digest.update(data)
            report(len(data))
        if digest.hexdigest() != shard.checksum:
            why = f"what is read back has not the checksum {shard.checksum}"
            raise StoreDamaged(self._folder / shard.file, why, "remove it there and publish again")

    def register(self, manifest: Manifest) -> None:
        """Let readers see a manifest whose shards are all there."""
        if manifest != self.there:
            self._folder.put(MANIFEST, manifest.to_bytes())
            self.there = manifest

    def put_index(self, manifest: Manifest) -> None:
        """Renew the merged index there, unless it is that of the manifest."""
        merged = load_merged(self._store, manifest)
        missing = [shard for shard in manifest.sealed if merged is None or shard.number not in merged.covers]
        with tempfile.TemporaryDirectory(prefix="roivault-") as folder:
            path = self._store / MERGED_INDEX
            if missing:
                path = Path(folder, MERGED_INDEX)
                Index.merge([load_index(self._store, shard) for shard in manifest.sealed]).save(path)
            if not self._has_index(path):
                self._folder.upload(MERGED_INDEX, path)


def manifest_at(folder: RemoteFolder) -> Manifest | None:
    """The manifest of a published store; None where there is none. Raises: StoreDamaged, StoreUnreachable."""
    try:
        return read_manifest(folder)[0]
    except StoreNotFound:
        return None


def publish(
    store: Path,
    url: str,
    sealed_only: bool = False,
    verify: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PublishReport:
    """Copy a store to a URL, or bring there what was added since; the same call continues an interrupted one.

    Args:
        sealed_only: leave out a shard that is still open, in place of refusing.
        verify: read all of it back and compare checksums; else sizes and indexes are compared.
        progress: called with (bytes done, bytes in all).

    Raises:
        StoreNotFound, StoreDamaged, UsageError
        StoreLocked: a shard is still open, or another process publishes there.
        StoreMismatch: what is there is no earlier state of this store.
        DataError: the store has nothing to publish.
        StoreUnreachable, DiskError
    """
    store = Path(os.path.abspath(store))
    folder = RemoteFolder(url)
    manifest = Manifest.load(store)
    if manifest.open and not sealed_only:
        raise StoreLocked(
            f"{manifest.open[0].name} of {store} is still open: it is being written, or its writer was killed. Wait, "
            "or run the writer's line again, so that it is sealed; or publish the other shards with --sealed-only"
        )
    manifest = replace(manifest, shards=manifest.sealed)
    if not manifest.shards:
        raise DataError(f"{store} has no sealed shard, so there is nothing to publish; extract into it first")
    report = PublishReport(str(store), str(folder), len(manifest.shards), verified=verify)
    folder.check_writable()
    lock = RemoteLock(folder)
    try:
        publisher = Publisher(store, folder)
        publisher.check_fits(manifest)
        with ThreadPoolExecutor(_THREADS) as threads:
            whole = list(threads.map(publisher.is_whole, manifest.shards))
        waiting = [shard for shard, there in zip(manifest.shards, whole, strict=True) if not there]
        report.bytes = sum(shard.bytes + shard.index_bytes for shard in waiting)
        total = report.bytes + sum(shard.bytes for shard in manifest.shards if verify)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done = min(done + count, total)
            progress(done, total)

        advance(0)
        for shard in waiting:
            end = done + shard.bytes + shard.index_bytes
            lock.check()
            publisher.copy(shard, advance)
            advance(end - done)  # not every driver tells how far it is
        for shard in manifest.shards if verify else ():
            publisher.read_back(shard, advance)
        lock.check()
        publisher.put_index(manifest)
        publisher.register(manifest)
        if manifest_at(folder) != manifest:
            raise StoreDamaged(folder / MANIFEST, "it is not what was written", "publish again")
    finally:
        lock.release()
    report.copied, report.kept = len(waiting), len(manifest.shards) - len(waiting)
    return report
