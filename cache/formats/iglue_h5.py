"""HDF5 with one group for each image, as the extraction scripts of IGLUE and of py-bottom-up-attention write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError
from ..regions import Regions
from .base import ALL_FIELDS, VG_IDS, BadRow, Format, Notes, Problem, Vocabularies
from .fields import IGLUE_NAMES, fields_of, regions_of

if TYPE_CHECKING:
    import h5py

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TROUBLE = (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError, MemoryError)  # of damaged files


def matches(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False


def read(path: Path, notes: Notes) -> Iterator[Regions | Problem]:
    """Raises: DataError: it is no HDF5, is cut short, or has arrays for all images together."""
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} cannot be opened as HDF5 ({error}): copy or download it again") from None
    with file:
        if isinstance(file.get("features"), h5py.Dataset):
            raise DataError(f"{path} has one array for all images; only a group for each image can be read")
        yield from _groups(file, "", notes)


def _groups(parent: h5py.Group, prefix: str, notes: Notes) -> Iterator[Regions | Problem]:
    """Every group with arrays in it is a record; keys with a slash are groups in groups."""
    import h5py

    for name in _names(parent):
        if isinstance(name, Problem):
            yield name
            continue
        key = prefix + name
        try:
            member = parent[name]
            if not isinstance(member, h5py.Group):
                notes.drop(f"{name!r} (an array that belongs to no image)")
                continue
            members = {n: member[n] for n in _names(member) if not isinstance(n, Problem)}
            fields = {n: value[()] for n, value in members.items() if isinstance(value, h5py.Dataset)}
        except _TROUBLE as error:
            yield Problem(f"group {key!r}", f"it cannot be read: {error}", key, "unreadable")
            continue
        if fields:
            try:
                yield regions_of(key, fields, notes)
            except BadRow as error:
                yield Problem.of(error, f"group {key!r}", key)
        if len(fields) < len(members):
            yield from _groups(member, f"{key}/", notes)


def _names(group: h5py.Group) -> Iterator[str | Problem]:
    """Names of the members, and what keeps them from being listed or being keys."""
    try:
        for name in group:
            if name.encode("utf-8", "surrogateescape") == name.encode("utf-8", "replace"):
                yield name
            else:
                yield Problem(f"group {group.name!r}", f"the name {name!r} in it is not utf-8", kind="key_invalid")
    except _TROUBLE as error:
        yield Problem(f"group {group.name!r}", f"its members cannot be listed: {error}", kind="unreadable")


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes):
    import h5py

    with h5py.File(path, "w") as file:

        def put(regions: Regions) -> None:
            if "\0" in regions.key or any(part in ("", ".") for part in regions.key.split("/")):
                raise BadRow("HDF5 cannot name a group so: no part of a path may be empty or a dot", "key_invalid")
            try:
                group = file.create_group(regions.key)
            except ValueError as error:
                raise BadRow(f"HDF5 cannot name a group so: {error}", "key_invalid") from None
            for name, value in fields_of(regions, IGLUE_NAMES).items():
                group[name] = value

        yield put


FORMAT = Format(
    "iglue-h5",
    "HDF5 with a group for each image (IGLUE, py-bottom-up-attention)",
    VG_IDS,
    ALL_FIELDS,
    matches,
    read,
    write,
    suffixes=(".h5", ".hdf5"),
)
