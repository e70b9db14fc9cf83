"""One writer per store: a lock of the operating system, so that a dead holder never blocks the next one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
import weakref
from pathlib import Path

from .errors import DiskError, StoreLocked
from .files import disk_errors

FILE = "writer.lock"
_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Held from construction to `release` or the end of this process; forked children do not hold it.

    Raises:
        StoreLocked: another writer, of this or another process, holds it; names it.
        DiskError: the file system has no locks, is full or failing.
    """

    def __init__(self, store: Path):
        self.path = store / FILE
        while True:
            with disk_errors(self.path):
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(fd)
                if self._is_current(fd):
                    break
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # the former holder removed the file between our open and our lock
        self._close = weakref.finalize(self, os.close, fd)
        _HELD.add(self)
        try:
            with disk_errors(self.path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(_holder()).encode(), 0)
        except BaseException:
            self.release()
            raise

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreLocked(
                    f"{self.path.parent} is being written by {_describe(fd)}; wait for it or stop it, then run the "
                    "same line again"
                ) from None
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise DiskError(
                    f"the file system of {self.path.parent} has no file locks ({error.strerror}); write the store to "
                    "a local disk and copy it when it is sealed"
                ) from None
            raise

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the file and give up the lock."""
        if self._close.alive:
            self.path.unlink(missing_ok=True)
            self._close()


def _holder() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": " ".join(sys.argv)[:400],
    }


def _describe(fd: int) -> str:
    try:
        holder = json.loads(os.pread(fd, 4096, 0))
        return "process {pid} on {host}, started {started}: {command}".format(**holder)
    except (ValueError, KeyError, TypeError):
        return "another process"


def _after_fork_in_child() -> None:
    for lock in list(_HELD):
        lock._close()  # our copy of the descriptor: this leaves the parent's lock alone


os.register_at_fork(after_in_child=_after_fork_in_child)
