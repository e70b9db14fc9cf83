"""Manifest and indexes of published stores, kept on this machine: what a store holds is looked up here, not there.

A folder for each, named by its URL, in $ROIVAULT_CACHE, else in `stores` of roivault's cache folder. All in it is
checked against the checksums of the manifest when it is used, and fetched again if it does not fit. It may be deleted
at any time. A store takes the size of its indexes, twice at most; nothing removes those of stores that are not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from .errors import DiskError, StoreDamaged, StoreNotFound
from .files import TEMPORARY, cache_folder, disk_errors
from .index import FILE as MERGED_INDEX
from .index import HEADER_BYTES, Index, promised_size
from .manifest import FILE as MANIFEST
from .manifest import HEAD_BYTES, Manifest, Shard
from .remote import RemoteFolder
from .snapshot import load_index, load_merged

THREADS = 8
_MANIFEST_LIMIT = 256 << 20
_TORN_PAUSES = (0.2, 0.5, 1.0)  # where a file is not replaced in one step, a reader may see a part of it


def read_head(folder: RemoteFolder) -> bytes:
    """The first bytes of the manifest, which tell one manifest from another.

    Raises: StoreNotFound, StoreDamaged, StoreUnreachable.
    """
    try:
        return folder.read(MANIFEST, 0, HEAD_BYTES)
    except FileNotFoundError:
        raise StoreNotFound(f"there is no store at {folder}: {folder / MANIFEST} does not exist") from None


def read_manifest(folder: RemoteFolder) -> tuple[Manifest, bytes]:
    """The manifest that is there now, and its bytes. Raises: StoreNotFound, StoreDamaged, StoreUnreachable."""
    for pause in (*_TORN_PAUSES, None):
        try:
            data = folder.read(MANIFEST, 0, _MANIFEST_LIMIT)
            return Manifest.from_bytes(data, folder / MANIFEST), data
        except FileNotFoundError:
            raise StoreNotFound(f"there is no store at {folder}: {folder / MANIFEST} does not exist") from None
        except StoreDamaged:
            if pause is None:
                raise
            time.sleep(pause)


class Mirror:
    """The local copies of one published store, shared by all processes of a user.

    Attributes:
        path: their folder.
    """

    def __init__(self, folder: RemoteFolder):
        self._folder = folder
        mirrors = os.environ.get("ROIVAULT_CACHE")
        stores = Path(mirrors).expanduser() if mirrors else cache_folder() / "stores"
        self.path = stores / xxhash.xxh3_128_hexdigest(str(folder).encode())

    def head(self) -> bytes:
        """Of the manifest that is here. Raises: FileNotFoundError."""
        return (self.path / MANIFEST).read_bytes()[:HEAD_BYTES]

    def manifest(self, head: bytes) -> Manifest:
        """The manifest that begins with `head`, or a newer one. Raises: StoreNotFound, StoreDamaged, DiskError."""
        try:
            with self._alone():
                data = (self.path / MANIFEST).read_bytes()
            if data.startswith(head):
                return Manifest.from_bytes(data, self.path / MANIFEST)
        except (FileNotFoundError, StoreDamaged):
            pass
        manifest, data = read_manifest(self._folder)
        with self._alone():
            self._keep(MANIFEST, lambda target: target.write_bytes(data))
        return manifest

    def indexes(self, manifest: Manifest, check: bool) -> tuple[Index | None, list[Index]]:
        """The merged index, where it helps, and those of the sealed shards that it does not cover.

        Raises: StoreDamaged, StoreUnreachable, DiskError.
        """
        with self._alone():
            merged = self._merged(manifest, check)
            lacking = self._lacking(manifest, merged)
            if len(lacking) > 1:
                self._fetch_merged(manifest)
                merged = self._merged(manifest, check)
                lacking = self._lacking(manifest, merged)
            with ThreadPoolExecutor(THREADS) as threads:
                list(threads.map(self._fetch, lacking))
            covered = merged.covers if merged else {}
            return merged, [self._index(s, check) for s in manifest.sealed if s.number not in covered]

    def _lacking(self, manifest: Manifest, merged: Index | None) -> list[Shard]:
        covered = merged.covers if merged else {}
        sealed = (shard for shard in manifest.sealed if shard.number not in covered)
        return [shard for shard in sealed if not (self.path / shard.index_file).exists()]

    def _merged(self, manifest: Manifest, check: bool) -> Index | None:
        try:
            return load_merged(self.path, manifest, check)
        except StoreDamaged:
            return None

    def _fetch_merged(self, manifest: Manifest) -> None:
        """A merged index that is not there, or not of this manifest, is none: the shards' own hold the same."""
        limit = HEADER_BYTES + sum(shard.index_bytes for shard in manifest.sealed)
        with contextlib.suppress(FileNotFoundError, StoreDamaged):
            size = promised_size(self._folder.read(MERGED_INDEX, 0, HEADER_BYTES))
            if HEADER_BYTES <= size <= limit + 16 * len(manifest.sealed):
                self._keep(MERGED_INDEX, lambda target: self._folder.download(MERGED_INDEX, target, size))

    def _index(self, shard: Shard, check: bool) -> Index:
        try:
            return load_index(self.path, shard, check)
        except StoreDamaged:  # the copy was damaged, or is of a store that was there before
            self._fetch(shard)
        try:
            return load_index(self.path, shard)
        except StoreDamaged as error:
            raise StoreDamaged(self._folder / shard.index_file, error.why) from None

    def _fetch(self, shard: Shard) -> None:
        name = shard.index_file
        try:
            self._keep(name, lambda target: self._folder.download(name, target, shard.index_bytes))
        except FileNotFoundError:
            raise StoreDamaged(self._folder / name, "the index is missing") from None

    def _keep(self, name: str, write: Callable[[Path], object]) -> None:
        """Make or replace a file of the mirror in one step."""
        with disk_errors(self.path):
            descriptor, temporary = tempfile.mkstemp(TEMPORARY, name, self.path)
            os.close(descriptor)
            try:
                write(Path(temporary))
                os.replace(temporary, self.path / name)
            except BaseException:
                os.unlink(temporary)
                raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While another process fetches, wait: what it gets needs no second fetch."""
        with disk_errors(self.path):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = open(self.path / "lock", "wb")
            except (PermissionError, NotADirectoryError, FileExistsError) as error:
                raise DiskError(
                    f"{error.filename}, where the indexes of published stores are kept, cannot be written: set "
                    "ROIVAULT_CACHE to a folder that can"
                ) from None
        with lock:
            with contextlib.suppress(OSError):  # a file system without locks: then some fetch the same
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
