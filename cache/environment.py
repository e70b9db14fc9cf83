"""The LMDB file of an open shard: one environment per process and file, whoever uses it.

LMDB forbids opening a file twice in one process, and an environment that was opened before a fork must not be used
behind it. So every user of a file shares one `Environment`, all transactions run under one lock of the process, and no
transaction (nor its reader slot) outlives that lock. A fork waits for the lock; the child then closes what it inherited,
which touches nothing of the parent since no transaction is alive, and opens the file anew when it needs it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from .errors import StoreDamaged
from .files import TEMPORARY, disk_errors, sync_directory
from .index import FAILURE, REPLACED

LOCK_SUFFIX = "-lock"  # what LMDB appends for the lock file of `subdir=False`
MAX_READERS = 512
MAP_SLACK = 64 << 20
DATABASES = (b"records", b"failures", b"replaced")

_LOCK = threading.RLock()
_SHARED: dict[tuple[str, int], Environment] = {}


class View:
    """A transaction on an open shard. Values are views of the map: copy what outlives the transaction."""

    def __init__(self, txn: lmdb.Transaction, databases: list):
        self.txn = txn
        self.records, self.failures, self.replaced = databases
        self.overriding = bool(txn.stat(self.replaced)["entries"])

    def flags(self, key: bytes) -> int | None:
        """Flags of a key's state; reads no value."""
        for flags, db in ((0, self.records), (FAILURE, self.failures)):
            if self.txn.cursor(db).set_key(key):
                return flags | self._mark(key)
        return None

    def value(self, key: bytes, flags: int) -> memoryview:
        """The value of a state with these flags."""
        return self.txn.get(key, db=self.failures if flags & FAILURE else self.records)

    def keys(self) -> Iterator[tuple[bytes, int]]:
        """(key, flags) of every state; reads no value."""
        for flags, db in ((0, self.records), (FAILURE, self.failures)):
            for key in self.txn.cursor(db).iternext(keys=True, values=False):
                key = bytes(key)
                yield key, flags | self._mark(key)

    def values(self) -> Iterator[tuple[bytes, int, memoryview]]:
        """(key, flags, value) of every state."""
        for flags, db in ((0, self.records), (FAILURE, self.failures)):
            for key, value in self.txn.cursor(db):
                key = bytes(key)
                yield key, flags | self._mark(key), value

    def _mark(self, key: bytes) -> int:
        return REPLACED if self.overriding and self.txn.get(key, db=self.replaced) is not None else 0

    def put(self, key: bytes, flags: int, value: bytes) -> None:
        """Set a key's state."""
        here, other = (self.failures, self.records) if flags & FAILURE else (self.records, self.failures)
        self.txn.delete(key, db=other)
        self.txn.put(key, value, db=here)
        if flags & REPLACED:
            self.txn.put(key, b"", db=self.replaced)

    def __len__(self) -> int:
        return sum(self.txn.stat(db)["entries"] for db in (self.records, self.failures))


class Environment:
    """An open shard in this process. Made by `acquire`, given back by `release`."""

    def __init__(self, path: Path, key: tuple[str, int]):
        self.path, self._key = path, key
        self.users = 0
        self.writable = False
        self.map_size = MAP_SLACK
        self.lockless = False  # no lock file could be had: a live writer elsewhere may alter pages while they are read
        self.retired = False
        self._env: lmdb.Environment | None = None
        self._databases: list = []

    @classmethod
    def acquire(cls, path: Path, writable: bool = False, map_size: int = 0) -> Environment:
        """Raises: FileNotFoundError; StoreDamaged: not an LMDB file, or one cut short; DiskError."""
        with _LOCK:
            key = (os.path.realpath(path), os.stat(path).st_ino)
            environment = _SHARED.setdefault(key, cls(path, key))
            if writable and not environment.writable:
                environment._close()
            environment.writable |= writable
            environment.map_size = max(environment.map_size, map_size)
            environment.users += 1
            return environment

    def release(self) -> None:
        with _LOCK:
            self.users -= 1
            if not self.users:
                self.retire()

    def retire(self) -> None:
        """Close it for every user; a later read raises FileNotFoundError."""
        with _LOCK:
            self._close()
            self.retired = True
            _SHARED.pop(self._key, None)

    def reset(self) -> None:
        """Close it until it is used again: after a failed write LMDB may refuse everything else."""
        with _LOCK:
            self._close()

    @contextmanager
    def read(self) -> Iterator[View]:
        """A snapshot. Keep it short: forks and the writer of this process wait for it."""
        with _LOCK:
            env = self._opened()
            try:
                txn = env.begin(buffers=True)
            except lmdb.MapResizedError:
                env.set_mapsize(0)  # a writer elsewhere grew the map: take its size
                txn = env.begin(buffers=True)
            try:
                yield View(txn, self._databases)
            finally:
                txn.abort()

    def write(self, fill: Callable[[View], None]) -> None:
        """Run `fill` in one transaction and commit it; grow the map and run it again when the map is full.

        Raises: DiskError: nothing of it is committed.
        """
        with _LOCK, disk_errors(self.path):
            while True:
                env = self._opened()
                try:
                    with env.begin(write=True, buffers=True) as txn:
                        fill(View(txn, self._databases))
                    return
                except lmdb.MapFullError:
                    self.map_size = 2 * env.info()["map_size"]
                    env.set_mapsize(self.map_size)
                except BaseException:
                    self._close()
                    raise

    def data_size(self) -> int:
        """Bytes of the file that hold pages."""
        with _LOCK:
            env = self._opened()
            return (env.info()["last_pgno"] + 1) * env.stat()["psize"]

    def version(self) -> int:
        """Grows with every commit."""
        with self.read() as view:
            return view.txn.id()

    def _opened(self) -> lmdb.Environment:
        if self.retired:
            raise FileNotFoundError(f"{self.path} is no longer open")
        if self._env is None:
            if not self.path.exists():
                raise FileNotFoundError(f"{self.path} does not exist any more")
            self._env, self.lockless = _open(self.path, self.writable, self.map_size)
            self._databases = [self._env.open_db(name, create=False) for name in DATABASES]
        return self._env

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env, self._databases = None, []


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
        sync_directory(path.parent)


def _open(path: Path, writable: bool, map_size: int, create: bool = False) -> tuple[lmdb.Environment, bool]:
    options = dict(
        subdir=False, create=create, readonly=not writable, map_size=map_size, max_dbs=len(DATABASES),
        max_readers=MAX_READERS, max_spare_txns=0,
    )  # fmt: skip
    try:
        try:
            _reserve_lock_file(path)
            return lmdb.open(str(path), **options), False
        except (PermissionError, lmdb.ReadonlyError, OSError):
            if writable:
                raise
            return lmdb.open(str(path), lock=False, **options), True
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise StoreDamaged(path, f"not an LMDB file any more ({error})") from error


def _reserve_lock_file(path: Path) -> None:
    """Give LMDB's lock file its blocks: it is written through a map, where a full disk would kill the process."""
    fd = os.open(f"{path}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size = (MAX_READERS + 1) * 64
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def _after_fork_in_child() -> None:
    for environment in list(_SHARED.values()):
        environment._close()
        environment.writable = False
    _LOCK.release()


os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_after_fork_in_child)
