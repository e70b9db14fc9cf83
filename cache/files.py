"""Durable file operations: replace a file as a whole, and tell a full or failing disk from everything else."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from .errors import DiskError

TEMPORARY = ".tmp"  # suffix of a file that is not complete yet; swept when a writer opens the store
_DISK = {errno.ENOSPC: "is full", errno.EDQUOT: "has no quota left", errno.EIO: "fails", errno.EROFS: "is read-only"}
_LITTLE = 1 << 20


def replace_file(path: Path, *parts) -> None:
    """Write `parts` (bytes-like) to `path` so that, whatever happens, it holds all of the new or all of the old bytes.

    Raises:
        DiskError: the disk is full or failing; the old file is intact.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    with disk_errors(path):
        try:
            with open(temporary, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path, size: int) -> None:
    """Cut the file to `size` bytes and make it durable."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a full or failing disk raises, through Python or through LMDB, into a DiskError that names the disk."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        code = error.errno if isinstance(error, OSError) else _lmdb_errno(error)
        if code not in _DISK:
            raise
        disk = mount_point(path)
        stat = os.statvfs(disk)
        free = stat.f_bavail * stat.f_frsize
        full = code == errno.EIO and free < _LITTLE  # what LMDB says when a write ends early
        raise DiskError(
            f"the disk at {disk} {_DISK[errno.ENOSPC if full else code]} ({free:,} bytes free): cannot write {path} "
            f"({error}); what was committed before is intact, make room and run the same line again"
        ) from error


def no_room_to_map(path: Path) -> DiskError:
    """For a file that does not fit into what address space this process has left."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    said = "has no limit" if limit == resource.RLIM_INFINITY else f"is limited to {limit:,} bytes (RLIMIT_AS)"
    return DiskError(
        f"{path} cannot be mapped into memory: the address space of this process {said}; raise the limit with "
        "`ulimit -v`, or write stores with a smaller --shard-size"
    )


def mount_point(path: Path) -> Path:
    """Where the file system that holds `path` is mounted."""
    path = Path(os.path.realpath(path))
    while not os.path.ismount(path):
        path = path.parent
    return path


def _lmdb_errno(error: lmdb.Error) -> int | None:
    """LMDB reports the system's error as text."""
    return next((code for code in _DISK if os.strerror(code) in str(error)), None)
