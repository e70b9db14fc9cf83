"""Records of feature servers kept on a disk of this machine, up to a number of bytes: the least used go first.

$ROIVAULT_RECORD_CACHE names the folder, $ROIVAULT_RECORD_CACHE_SIZE its size, such as 50GB (the default). Any number of
processes use it at once. Each record is a file with its checksum, which is compared when it is read; what is damaged or
does not fit is as good as absent. All in it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import xxhash

from .errors import DiskError
from .files import TEMPORARY, disk_errors
from .sizes import parse_bytes

FOLDER, SIZE = "ROIVAULT_RECORD_CACHE", "ROIVAULT_RECORD_CACHE_SIZE"
_DEFAULT = "50GB"
_HEAD = struct.Struct("<Q")  # xxh3-64 of the rest of a file
_TALLY = struct.Struct("<Q")  # bytes of all files, or more, where a process was killed
_KEPT = 0.9  # of the size, after room was made
_USED_SECONDS = 60.0  # how exactly it is known when a record was used last
_ABANDONED_SECONDS = 600.0  # after which nobody is still writing


class DiskCache:
    """A folder of records.

    Args:
        size: most bytes that it takes.

    Raises: DiskError: it cannot be written.
    """

    def __init__(self, folder: Path, size: int):
        self.folder, self.size = folder, size
        with self._alone():
            pass

    @classmethod
    def of_environment(cls) -> DiskCache | None:
        """Raises: UsageError, DiskError."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder).expanduser(), parse_bytes(SIZE, os.environ.get(SIZE) or _DEFAULT)) if folder else None

    def get(self, name: str, length: int) -> memoryview | None:
        """The bytes that were put under a name, unless they are gone or damaged."""
        path = self._path(name)
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size != _HEAD.size + length:
                    return None
                head, memory = bytearray(_HEAD.size), np.empty(length, np.uint8)
                if os.readv(file.fileno(), [head, memory]) != status.st_size:
                    return None
                if time.time() - status.st_mtime > _USED_SECONDS:
                    os.utime(file.fileno())
        except OSError:
            return None
        value = memoryview(memory).toreadonly()
        return value if xxhash.xxh3_64_intdigest(value) == _HEAD.unpack(head)[0] else None

    def put(self, values: Mapping[str, memoryview]) -> None:
        """Keep values; a disk that is full or fails keeps none of them."""
        room = sum(_HEAD.size + len(value) for value in values.values())
        if not values or room > self.size * _KEPT:
            return
        with contextlib.suppress(OSError, DiskError), self._alone() as lock:
            self._reserve(lock, room)
            for name, value in values.items():
                self._write(self._path(name), value)

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{xxhash.xxh3_64_intdigest(name.encode()) % 256:02x}" / name

    def _write(self, path: Path, value: memoryview) -> None:
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(TEMPORARY, dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(_HEAD.pack(xxhash.xxh3_64_intdigest(value)))
                file.write(value)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _reserve(self, lock: int, room: int) -> None:
        """Add to the tally what is about to be written; where it is too much, count and make room."""
        tally = os.pread(lock, _TALLY.size, 0)
        total = _TALLY.unpack(tally)[0] if len(tally) == _TALLY.size else self.size
        if total + room > self.size:
            total = self._make_room(room)
        os.pwrite(lock, _TALLY.pack(total + room), 0)

    def _make_room(self, room: int) -> int:
        """Remove what was not used for longest; returns the bytes that are left."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.size * _KEPT - room:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of the last use, size and path of each."""
        now = time.time()
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if entry.name.endswith(TEMPORARY) and now - status.st_mtime > _ABANDONED_SECONDS:
                        os.unlink(entry.path)
                    else:
                        yield status.st_mtime, status.st_size, Path(entry.path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[int]:
        """The file of the tally, while nobody else writes."""
        try:
            with disk_errors(self.folder):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = os.open(self.folder / "tally", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskError(
                f"{error.filename}, where records of feature servers are kept, cannot be written: set {FOLDER} to a "
                "folder that can, or unset it"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)
