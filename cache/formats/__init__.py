"""Caches of other systems. One module for a layout; a new one is a module with a `Format` and one line in FORMATS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from ..errors import DataError, InputNotFound, UsageError
from ..regions import Regions
from .base import Format, Notes, Problem

FORMATS = {
    "volta-lmdb": "volta_lmdb:BASE64",
    "volta-lmdb-raw": "volta_lmdb:RAW",
    "iglue-h5": "iglue_h5:FORMAT",
    "lxmert-tsv": "tsv:LXMERT",
    "butd-tsv": "tsv:BUTD",
    "mmf-npy": "mmf_npy:FORMAT",
    "bua-npz": "bua_npz:FORMAT",
    "vinvl-tsv": "vinvl:FORMAT",
    "webdataset": "webdataset:FORMAT",
    "coco-results": "coco_results:FORMAT",
}


@lru_cache
def get_format(name: str) -> Format:
    """Raises: UsageError: there is no such format."""
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}; there are {', '.join(FORMATS)}")
    module, _, attribute = FORMATS[name].partition(":")
    return getattr(import_module(f".{module}", __package__), attribute)


def detect(path: Path) -> Format:
    """The format of what is at a path, from its content.

    Raises: InputNotFound; UsageError: it is none that can be read.
    """
    if not path.exists():
        raise InputNotFound(f"there is nothing at {path}")
    readable = [fmt for fmt in map(get_format, FORMATS) if fmt.read]
    for fmt in readable:
        if fmt.matches(path):
            return fmt
    names = ", ".join(fmt.name for fmt in readable)
    raise UsageError(f"{path} looks like none of the formats that can be read ({names}); if it is one, say --from NAME")


def format_of(path: Path, name: str | None) -> Format:
    """The format to read a path by: the named one, else what its content tells.

    Raises: InputNotFound; UsageError: there is no such format, or it cannot be read.
    """
    if name is None:
        return detect(path)
    found = get_format(name)
    if not found.read:
        raise UsageError(f"{found.name} can be written, not read")
    if not path.exists():
        raise InputNotFound(f"there is nothing at {path}")
    return found


def rows_of(path: Path, found: Format, notes: Notes) -> Iterator[Regions | Problem]:
    """What a path holds, in its order. Raises: DataError: it is unusable as a whole, or of another format."""
    try:
        yield from found.read(path, notes)
    except (IsADirectoryError, NotADirectoryError, FileNotFoundError) as error:
        raise DataError(f"{path} cannot be read as {found.name} ({error}): say another format, or none") from None


def by_suffix(path: Path) -> Format:
    """The format that a destination's name means. Raises: UsageError: it means none."""
    writable = [fmt for fmt in map(get_format, FORMATS) if fmt.write]
    for fmt in writable:
        if path.name.lower().endswith(fmt.suffixes):
            return fmt
    names = ", ".join(fmt.name for fmt in writable)
    raise UsageError(
        f"the name {path.name!r} does not tell a format: end it in .roi for a store, or say --to ({names})"
    )
