"""Durable file operations: replace a file as a whole, and tell a full or failing disk from everything else."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from .errors import DiskError

TEMPORARY = ".tmp"  # suffix of a file that is not complete yet; swept when a writer opens the store
DAMAGED = ".damaged"  # suffix of what `repair` moved aside; nothing reads or removes it
_DISK = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "has no quota left",
    errno.EIO: "fails",
    errno.EROFS: "is read-only",
    errno.EFBIG: "takes no file as large, or `ulimit -f` forbids it",
}
_LITTLE = 1 << 20


def cache_folder() -> Path:
    """Where what can be fetched again is kept: $ROIVAULT_HOME, else `roivault` in the platform's folder for that."""
    if home := os.environ.get("ROIVAULT_HOME"):
        return Path(home).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "roivault"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "roivault"


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
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file durable, or what was renamed in, made in and removed from a directory."""
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


def require_room(folder: Path, size: int) -> None:
    """Raises: DiskError: the disk of a folder has not `size` bytes left."""
    while not folder.exists():
        folder = folder.parent
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if size > free:
        raise DiskError(
            f"the disk at {mount_point(folder)} has {free:,} bytes free, and {size:,} are needed in {folder}; nothing "
            "was written: make room, or choose another place"
        )


def set_aside(path: Path) -> Path:
    """Keep what is at `path`, which is to be replaced or removed next, under a name that ends in .damaged.

    `path` itself stays meanwhile, where the file system has hard links. Raises: OSError.
    """
    number, target = 1, path.with_name(path.name + DAMAGED)
    while os.path.lexists(target):
        if os.path.exists(target) and os.path.samefile(path, target):
            return target  # a process that was killed had come so far
        number += 1
        target = path.with_name(f"{path.name}.{number}{DAMAGED}")
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        os.rename(path, target)
    sync(path.parent)
    return target


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
