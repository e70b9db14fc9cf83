"""The LMDB file of an open shard: one environment per process and file, whoever uses it.

LMDB forbids opening a file twice in one process, and using an environment behind a fork that it was opened before. So
all users of a file share one `Environment`, all transactions run under one lock of the process, and no transaction (nor
its reader slot) outlives that lock. A fork waits for the lock and closes every environment first; parent and child open
the file anew when they need it. (A child that closes what it inherited would give up reader slots that the parent has
taken meanwhile: a writer would then overwrite what is being read.)
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from .errors import DiskError, StoreDamaged
from .files import TEMPORARY, disk_errors, no_room_to_map, sync
from .probe import probe
from .states import FAILURE, REPLACED

LOCK_SUFFIX = "-lock"  # what LMDB appends to name the lock file
MAX_READERS = 512
MAP_SLACK = 64 << 20
DATABASES = (b"records", b"failures", b"replaced")

_LOCK = threading.RLock()
_SHARED: dict[str, Environment] = {}  # by real path


class View:
    """A transaction on an open shard. Values are views of the map: copy what shall outlive the transaction."""

    def __init__(self, txn: lmdb.Transaction, databases: list):
        self.txn = txn
        self._records, self._failures, self._replaced = databases
        self.overriding = bool(txn.stat(self._replaced)["entries"])

    @property
    def version(self) -> int:
        """Grows with every commit."""
        return self.txn.id()

    def __len__(self) -> int:
        return sum(self.txn.stat(db)["entries"] for db in (self._records, self._failures))

    def flags(self, key: bytes) -> int | None:
        """Flags of a key's state; reads no value."""
        for flags, db in ((0, self._records), (FAILURE, self._failures)):
            if self.txn.cursor(db).set_key(key):
                return flags | self._mark(key)
        return None

    def value(self, key: bytes, flags: int) -> memoryview:
        """The value of a state with these flags."""
        return self.txn.get(key, db=self._failures if flags & FAILURE else self._records)

    def keys(self) -> Iterator[tuple[bytes, int]]:
        """(key, flags) of every state; reads no value."""
        for flags, db in ((0, self._records), (FAILURE, self._failures)):
            for key in self.txn.cursor(db).iternext(keys=True, values=False):
                key = bytes(key)
                yield key, flags | self._mark(key)

    def put(self, key: bytes, flags: int, value: bytes) -> None:
        """Set a key's state."""
        here, other = (self._failures, self._records) if flags & FAILURE else (self._records, self._failures)
        self.txn.delete(key, db=other)
        self.txn.put(key, value, db=here)
        if flags & REPLACED:
            self.txn.put(key, b"", db=self._replaced)

    def _mark(self, key: bytes) -> int:
        return REPLACED if self.overriding and self.txn.get(key, db=self._replaced) is not None else 0


class Environment:
    """An open shard in this process. Got by `acquire`, given back by `release`.

    Attributes:
        path: the shard file.
        lockless: no lock file could be had, so that a writer elsewhere may alter pages while they are read here.
    """

    def __init__(self, path: Path, real_path: str, inode: tuple[int, int]):
        self.path = path
        self.lockless = False
        self._real_path, self._inode = real_path, inode
        self._users = 0
        self._writable = False
        self._map_size = MAP_SLACK
        self._retired = False
        self._env: lmdb.Environment | None = None
        self._databases: list = []

    @classmethod
    def acquire(cls, path: Path, writable: bool = False, map_size: int = 0) -> Environment:
        """The environment of this process for a file. Raises: FileNotFoundError."""
        with _LOCK:
            real_path, stat = os.path.realpath(path), os.stat(path)
            inode = stat.st_dev, stat.st_ino
            environment = _SHARED.get(real_path)
            if environment is not None and environment._inode != inode:
                environment.retire()  # its file was removed and another one made in its place
                environment = None
            for other in [other for other in _SHARED.values() if other._inode == inode and other is not environment]:
                if not os.path.exists(other._real_path):
                    other.retire()  # its file was moved here
            if environment is None:
                environment = _SHARED[real_path] = cls(path, real_path, inode)
            environment._users += 1
            if writable:
                environment._map_size = max(environment._map_size, min(map_size, sys.maxsize))
                environment._writable = True
                environment.reset()
            return environment

    def release(self, writable: bool = False) -> None:
        """Takes what `acquire` was given."""
        with _LOCK:
            self._users -= 1
            if writable:
                self._writable = False
                self.reset()
            if not self._users:
                self.retire()

    def abandon(self) -> None:
        """`release` for a writer that was lost: whoever reads may be in the middle of a transaction of this thread."""
        with _LOCK:
            self._writable = False
            self.release()

    def retire(self) -> None:
        """Close it for every user; to use it after that raises FileNotFoundError."""
        with _LOCK:
            self.reset()
            self._retired = True
            if _SHARED.get(self._real_path) is self:
                del _SHARED[self._real_path]

    def reset(self) -> None:
        """Close it until it is used again: after a failed write LMDB may refuse everything else."""
        with _LOCK:
            if self._env is not None:
                self._env.close()
                self._env, self._databases = None, []

    @property
    def is_open(self) -> bool:
        """Whether LMDB has the file open here now."""
        return self._env is not None

    @contextmanager
    def read(self) -> Iterator[View]:
        """A snapshot. Keep it short: forks, and the writer of this process, wait for it.

        Raises:
            FileNotFoundError: the shard is open no more.
            StoreDamaged: LMDB cannot read it.
            DiskError: it cannot be opened, or not be mapped into memory.
        """
        with _LOCK:
            try:
                txn = self._begin(write=False)
                try:
                    yield View(txn, self._databases)
                finally:
                    txn.abort()
            except lmdb.Error as error:
                self.reset()
                if isinstance(error, lmdb.MemoryError):
                    raise no_room_to_map(self.path) from error
                raise StoreDamaged(self.path, f"LMDB cannot read it ({error})") from error

    def write(self, fill: Callable[[View], None]) -> None:
        """Run `fill` in one transaction and commit it; when the map is full, grow it and run it all again.

        Raises: DiskError: nothing of it is committed.
        """
        with _LOCK, disk_errors(self.path):
            try:
                while not self._try_write(fill):
                    self._map_size = 2 * self._env.info()["map_size"]
                    self._env.set_mapsize(self._map_size)
            except BaseException as error:
                self.reset()
                if isinstance(error, lmdb.MemoryError):
                    raise no_room_to_map(self.path) from error
                raise

    def _try_write(self, fill: Callable[[View], None]) -> bool:
        try:
            with self._begin(write=True) as txn:
                fill(View(txn, self._databases))
        except lmdb.MapFullError:
            return False
        return True

    def data_size(self) -> int:
        """Bytes of the file up to its last page."""
        with _LOCK:
            return _data_size(self._opened())

    def _begin(self, write: bool) -> lmdb.Transaction:
        env = self._opened()
        try:
            return env.begin(write=write, buffers=True)
        except lmdb.MapResizedError:
            env.set_mapsize(0)  # a writer elsewhere grew the map: take its size
            return env.begin(write=write, buffers=True)

    def _opened(self) -> lmdb.Environment:
        if self._retired or not self.path.exists():
            raise FileNotFoundError(f"{self.path} is open no more")
        if self._env is None:
            env, self.lockless = _open(self.path, self._writable, self._map_size)
            try:
                _refuse_cut(self.path, env)
                self._databases = [env.open_db(name, create=False) for name in DATABASES]
            except BaseException as error:
                env.close()
                if isinstance(error, lmdb.Error):
                    raise StoreDamaged(self.path, f"LMDB cannot read it ({error})") from error
                raise
            self._env = env
        return self._env


def create(path: Path) -> None:
    """Make an empty open shard. Raises: DiskError."""
    temporary = path.with_name(path.name + TEMPORARY)
    with _LOCK, disk_errors(path):
        try:
            env, _ = _open(temporary, True, MAP_SLACK, create=True)
            with env:
                for name in DATABASES:
                    env.open_db(name)
            os.replace(temporary, path)
        finally:
            for leftover in (temporary, Path(f"{temporary}{LOCK_SUFFIX}")):
                leftover.unlink(missing_ok=True)
        sync(path.parent)


def _open(path: Path, writable: bool, map_size: int, create: bool = False) -> tuple[lmdb.Environment, bool]:
    options = dict(
        subdir=False, create=create, readonly=not writable, map_size=map_size, max_dbs=len(DATABASES),
        max_readers=MAX_READERS, max_spare_txns=0, mode=0o666,
    )  # fmt: skip
    if not create and not os.path.getsize(path):
        raise StoreDamaged(path, "it is empty")
    try:
        try:
            with disk_errors(path):
                _reserve_lock_file(path)
                env = lmdb.open(str(path), **options)
            if writable:
                env.reader_check()  # what a killed reader had open would keep pages from being used again
            return env, False
        except (OSError, lmdb.ReadonlyError, DiskError):
            if writable:
                raise
            return lmdb.open(str(path), lock=False, **options), True
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise StoreDamaged(path, f"not an LMDB file any more ({error})") from error
    except lmdb.MemoryError as error:
        if map_size > MAP_SLACK:
            return _open(path, writable, MAP_SLACK, create)  # and `write` lets the map grow
        raise no_room_to_map(path) from error
    except lmdb.Error as error:
        raise DiskError(
            f"LMDB cannot open {path} ({error}): its file system may lack memory maps or locks; write the store to a "
            "local disk, and copy it when it is sealed"
        ) from error


def _reserve_lock_file(path: Path) -> None:
    """Give LMDB's lock file its blocks: it is written through a map, where a full disk would kill the process."""
    size = (MAX_READERS + 1) * 64
    fd = os.open(f"{path}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        there = os.fstat(fd).st_size
        if there < size:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                os.pwrite(fd, bytes(size - there), there)
    finally:
        os.close(fd)


def _data_size(env: lmdb.Environment) -> int:
    return (env.info()["last_pgno"] + 1) * env.stat()["psize"]


def _refuse_cut(path: Path, env: lmdb.Environment) -> None:
    """Reading a page behind the end of the file would kill the process.

    LMDB need not write unused pages at the end: a short file is refused only if another process cannot read it.
    """
    expected = _data_size(env)  # first: a writer elsewhere may let the file grow meanwhile
    size = os.path.getsize(path)
    if size < expected and probe(path).problems:
        raise StoreDamaged(path, f"it was cut to {size} bytes, its pages end at {expected}")


def _before_fork() -> None:
    _LOCK.acquire()
    for environment in _SHARED.values():
        environment.reset()


def _after_fork_in_child() -> None:
    for environment in _SHARED.values():
        environment._writable = False
    _LOCK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_after_fork_in_child)
