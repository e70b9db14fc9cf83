"""Making a file or folder that bears its name only once it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UsageError
from .files import disk_errors, sync
from .lock import FILE as LOCK
from .lock import WriterLock

SUFFIX = ".partial"


@contextmanager
def building(destination: Path) -> Iterator[Path]:
    """The path to build at: in the folder `DESTINATION.partial`, from which it moves when the context ends well.

    A process that is killed leaves that folder; the next one with the same destination starts afresh in it. An error
    removes it.

    Raises:
        UsageError: the destination, or something else under the name of the folder, is there already.
        StoreLocked: another process is building it.
        DiskError: the disk is full or failing.
    """
    if os.path.lexists(destination):
        raise UsageError(f"{destination} is there already: give another name, or remove it")
    folder = destination.with_name(destination.name + SUFFIX)
    target = folder / destination.name
    with disk_errors(folder):
        if os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"{folder}, where {destination.name} would be built, is a file: remove it")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (NotADirectoryError, FileExistsError):
            raise UsageError(f"{destination} cannot be made: a folder above it is a file; give another place") from None
        strangers = {entry.name for entry in os.scandir(folder)} - {LOCK, target.name}
        if strangers:
            raise UsageError(f"{folder}, where {destination.name} would be built, holds {min(strangers)!r}: move it")
        lock = WriterLock(folder)
        try:
            _remove(target)
            yield target
            _sync_all(target)
            os.rename(target, destination)
            sync(destination.parent)
        finally:
            _remove(target)
            lock.release()
            with suppress(OSError):  # another process has begun in it
                folder.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_all(path: Path) -> None:
    """Everything is on the disk before it gets its name."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
    if path.is_file():
        sync(path)
