"""A store that is written to a URL, by way of a working folder here.

The working folder is a store directory that holds the open shard, and of the sealed ones, which are moved to the URL in
the background, only the indexes. A sealed shard is registered in the manifest at the URL once it is there whole; until
then it stays here. So whatever is lost, this disk included, costs what was neither registered nor is still here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from .errors import DiskError, StoreDamaged, StoreMismatch, StoreNotFound, UsageError
from .files import TEMPORARY
from .lock import WriterLock
from .manifest import Manifest, Shard
from .opening import differences, prepare_directory
from .publish import Publisher
from .published import RemoteShard
from .ranges import RangeReader
from .remote import RemoteFolder
from .remote_lock import RemoteLock
from .shard import SealedShard
from .snapshot import Snapshot, load_index

_SHARD_FILE = re.compile(rf"shard-(\d+)\.(?:lmdb|idx)(?:{re.escape(TEMPORARY)})?")

log = logging.getLogger("roivault")


class Destination:
    """A URL that one job writes to; a context manager, and what `StoreWriter` is given.

    Entering it brings the working folder up to what is registered at the URL, so that a job goes on from there, also on
    another machine or a new disk.

    Args:
        url: where the store comes to be; it may be there already.
        work: the working folder, on a disk of this machine with room for three shards.

    Attributes:
        path: the working folder.

    Raises (when it is entered):
        StoreLocked: another job writes there; names it.
        StoreMismatch: the working folder is of another store.
        StoreUnreachable, StoreDamaged, DiskError, UsageError
    """

    def __init__(self, url: str, work: str | os.PathLike):
        self.folder, self.path = RemoteFolder(url), Path(os.path.abspath(work))
        self.folder.check_writable()
        self._reader = RangeReader(self.folder)
        self._upload: Future[None] | None = None
        self._in_place: WriterLock | None = None

    def __str__(self) -> str:
        return str(self.folder)

    def __enter__(self) -> Destination:
        self._lock = RemoteLock(self.folder)
        try:
            prepare_directory(self.path)
            if self.folder.local and os.path.samefile(self.folder.local, self.path):
                raise UsageError(f"{self.folder} and the working folder are one place: give -o {self.path} alone")
            self._in_place = self._lock_in_place()
            self._publisher = Publisher(self.path, self.folder)
            self._adopt()
        except BaseException:
            self._release()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="roivault-upload")
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._thread.shutdown()  # what is on its way arrives
        self._release()

    def _lock_in_place(self) -> WriterLock | None:
        """Where the URL is that of a folder: keep out whoever would write there in place. Raises: StoreLocked."""
        with contextlib.suppress(DiskError):  # no locks there, so that nobody can write in place
            return WriterLock(self.folder.local) if self.folder.local else None

    def _release(self) -> None:
        if self._in_place is not None:
            self._in_place.release()
        self._lock.release()

    def snapshot(self) -> Snapshot:
        """Of the working folder; what is not in it any more is read at the URL. Raises: StoreDamaged."""
        return _WorkingSnapshot(self.path, self.folder, self._reader)

    def hand_over(self, manifest: Manifest) -> None:
        """Move the sealed shards of the working folder to the URL, in the background.

        Waits for those that were handed over before, so that few are on this disk, and raises what went wrong with
        them: StoreUnreachable, StoreLocked, StoreDamaged, DiskError. They are intact here, the same job goes on.
        """
        self._wait()
        self._upload = self._thread.submit(self._move, manifest)

    def finish(self, manifest: Manifest) -> None:
        """Move all sealed shards, and renew the merged index. Raises: as `hand_over`."""
        self._wait()
        self._move(manifest)
        if manifest.sealed:
            self._lock.check()
            self._publisher.put_index(replace(manifest, shards=manifest.sealed))

    def register(self, manifest: Manifest, shard: Shard) -> None:
        """Let readers see a manifest with one shard more, which another process copied to the URL.

        Raises: StoreDamaged: it is not whole there; StoreLocked, StoreUnreachable, DiskError.
        """
        if not self._publisher.is_whole(shard):
            raise StoreDamaged(self.folder / shard.file, "it is not whole", "run the same line again")
        self._lock.check()
        self._publisher.register(manifest)
        log.info("%s is at %s", shard.name, self.folder)

    def begin(self, manifest: Manifest) -> list[int]:
        """Register a store that may be empty yet, and `sweep`; returns the numbers of what that removed.

        So shards without a manifest are never those of a job that was killed. Raises: StoreDamaged; as `register`.
        """
        left = self._unregistered()
        if self._publisher.there is None and left:
            raise StoreDamaged(
                self.folder / next(iter(left)), "there is a shard, and no manifest", "remove it, or give another URL"
            )
        self._lock.check()
        self._publisher.register(replace(manifest, shards=manifest.sealed))
        self.sweep()
        return list(left.values())

    def sweep(self) -> None:
        """Remove the shards at the URL that are not registered. Raises: StoreLocked, StoreUnreachable, DiskError."""
        self._lock.check()
        for name in self._unregistered():
            self.folder.remove(name)

    def _unregistered(self) -> dict[str, int]:
        """Files of such shards, and the numbers of these."""
        there = self._publisher.there
        registered = {shard.number for shard in there.shards} if there else set()
        found = filter(None, map(_SHARD_FILE.fullmatch, self.folder.names()))
        return {match[0]: int(match[1]) for match in found if int(match[1]) not in registered}

    def _wait(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.result()

    def _move(self, manifest: Manifest) -> None:
        registered = [shard for shard in manifest.sealed if self._publisher.is_registered(shard)]
        for shard in manifest.sealed:
            if shard not in registered:
                self._lock.check()
                if not self._publisher.is_whole(shard):
                    self._publisher.copy(shard)
                registered.append(shard)
                self._lock.check()
                self._publisher.register(replace(manifest, shards=tuple(sorted(registered, key=lambda s: s.number))))
                log.info("%s is at %s", shard.name, self.folder)
            (self.path / shard.file).unlink(missing_ok=True)

    def _adopt(self) -> None:
        """Give the working folder the manifest entries and indexes of what is registered."""
        lock = WriterLock(self.path)
        try:
            try:
                mine = Manifest.load(self.path)
            except StoreNotFound:
                mine = None
            there = self._publisher.there
            if there is None or not there.shards:
                self._refuse_lost(mine.sealed if mine else ())
                return
            if mine is not None and mine.shards:
                self._refuse_others(mine, there)
                self._refuse_lost([shard for shard in mine.sealed if not self._publisher.is_registered(shard)])
                own = [shard for shard in mine.shards if not self._publisher.is_registered(shard)]
                both = sorted([*there.shards, *own], key=lambda shard: shard.number)
                there = replace(mine, dim=there.dim, shards=tuple(both))
            for shard in self._publisher.there.shards:
                self._fetch_index(shard)
            if there != mine:
                there.save(self.path)
        finally:
            lock.release()

    def _refuse_others(self, mine: Manifest, there: Manifest) -> None:
        found = differences(there, mine, (f"at {self.folder}", "here"))
        own = {shard.number: shard for shard in mine.shards}
        for shard in there.shards:
            if shard.number in own and own[shard.number].checksum != shard.checksum:
                found.append(f"{shard.name} here is not the one there")
        if found:
            raise StoreMismatch(
                f"the working folder {self.path} holds another store than {self.folder}, or one that went on "
                f"elsewhere: {'; '.join(found[:8])}; remove that folder or give another --work: what is not at the URL "
                "is done anew"
            )

    def _refuse_lost(self, unregistered: list[Shard] | tuple[Shard, ...]) -> None:
        """A shard that is neither here nor there: the folder worked for another URL, or that was emptied."""
        for shard in unregistered:
            if not (self.path / shard.file).exists():
                raise StoreMismatch(
                    f"{shard.file} is neither in the working folder {self.path} nor registered at {self.folder}: was "
                    "that folder used for another URL? Remove it or give another --work: what is not at the URL is "
                    "done anew"
                )

    def _fetch_index(self, shard: Shard) -> None:
        target = self.path / shard.index_file
        try:
            load_index(self.path, shard)
        except StoreDamaged:
            temporary = target.with_name(target.name + TEMPORARY)
            try:
                self.folder.download(shard.index_file, temporary, shard.index_bytes)
            except FileNotFoundError:
                raise StoreDamaged(self.folder / shard.index_file, "the index is missing") from None
            os.replace(temporary, target)
            load_index(self.path, shard)


class _WorkingSnapshot(Snapshot):
    """Of a working folder: values of shards whose files have gone are read at the URL."""

    def __init__(self, path: Path, folder: RemoteFolder, reader: RangeReader):
        super().__init__(path)
        self._folder, self._reader = folder, reader

    def mapped(self, number: int) -> SealedShard | RemoteShard:
        try:
            return super().mapped(number)
        except StoreDamaged:
            shard = self.shard(number)
            if (self.path / shard.file).exists():
                raise
            moved = self._mapped[number] = RemoteShard(self._folder, shard, self._reader, check=True)
            return moved
