"""Files of one record a line, and folders of one file a record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import DataError
from .base import BadRow

MAX_LINE = 256 << 20  # bytes; a record of 1,000 regions takes about 11 MB


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of each line that is not blank.

    Raises: DataError: a line is longer than any record, so that the file is something else.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(_bounded(file), 1):
            if line.strip():
                yield number, line


def _bounded(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file from where it is at. Raises: DataError: one is longer than any record."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            at = f"{file.name}, at byte {file.tell() - len(line):,}"
            raise DataError(f"{at}: a line of more than {MAX_LINE >> 20} MiB: it is not a table of regions")
        yield line


class KeyedLines:
    """A table beside another one, in which the lines have the same keys: mostly in the same order, if not, then found
    through an index of offsets that is built when it is first needed. A context manager.
    """

    def __init__(self, path: Path):
        self._file = open(path, "rb")
        self._offsets: dict[bytes, int] | None = None

    def __enter__(self) -> KeyedLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, key: bytes) -> bytes | None:
        """What stands behind the key and its tab; None when no line has the key. Raises: DataError, as `lines`."""
        if self._offsets is None:
            found, rest = self._next()
            if found == key:
                return rest
            self._offsets = self._index()
        if key not in self._offsets:
            return None
        self._file.seek(self._offsets[key])
        return self._next()[1]

    def _next(self) -> tuple[bytes, bytes]:
        key, _, rest = next(_bounded(self._file), b"").rstrip(b"\r\n").partition(b"\t")
        return key, rest

    def _index(self) -> dict[bytes, int]:
        offsets: dict[bytes, int] = {}
        self._file.seek(0)
        offset = 0
        for line in _bounded(self._file):
            offsets.setdefault(line.rstrip(b"\r\n").partition(b"\t")[0], offset)
            offset += len(line)
        return offsets


def files(folder: Path, suffix: str) -> Iterator[Path]:
    """Files below a folder whose names end so, sorted within each folder."""
    with os.scandir(folder) as entries:
        listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in listed:
        if is_folder:
            yield from files(folder / name, suffix)
        elif name.endswith(suffix):
            yield folder / name


def key_of(cell: bytes) -> str:
    """The key in the first cell of a line. Raises: BadRow."""
    try:
        key = cell.decode()
    except UnicodeDecodeError:
        raise BadRow("its key is not utf-8", "key_invalid") from None
    if not key:
        raise BadRow("it has no key", "key_invalid")
    return key


def check_key(key: str) -> None:
    """Raises: BadRow: readers of tab-separated lines would take it for something else."""
    if key[0] in "\"'" or key != key.strip() or any(c in key for c in "\t\0") or len(key.splitlines()) > 1:
        raise BadRow(
            "a key with tabs, line breaks, or quotes or blanks at its ends has no place in a table", "key_invalid"
        )


def check_path(key: str) -> None:
    """Raises: BadRow: the key is not a relative path, or has a part that no file can be called."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in key or os.path.isabs(key):
        raise BadRow("a key that is not a relative path has no place in a folder", "key_invalid")
    if any(len(part.encode()) > 240 for part in parts):
        raise BadRow("a key with a part of more than 240 bytes has no place in a folder", "key_invalid")
