"""The LMDB of Volta and IGLUE: key -> pickled dict, and under `keys` the pickled list of all keys.

Their `npy_to_lmdb` keeps features and boxes as base64 of float32, their `h5_to_lmdb` as arrays; Volta reads both. Both
are read here whatever the dialect of each record.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import lmdb

from ..pickles import load_pickle
from ..regions import Regions
from .base import ALL_FIELDS, VG_IDS, BadRow, Format, Notes, Problem, Vocabularies
from .fields import IGLUE_NAMES, fields_of, regions_of
from .lmdb_entries import KEYS, MISSING, REMARK, entries

_MAP_SIZE = 1 << 40  # address space; the file grows as it is filled
_COMMIT = 16 << 20  # bytes in one transaction


def matches(path: Path) -> bool:
    try:
        with open(path / "data.mdb" if path.is_dir() else path, "rb") as data:
            return data.read(20)[16:20] == b"\xde\xc0\xef\xbe" and not (path / "manifest.json").exists()
    except OSError:
        return False


def read(path: Path, notes: Notes) -> Iterator[Regions | Problem]:
    """Raises: DataError: it is no LMDB, is cut short, or is damaged so that it cannot be read on."""
    for kind, key, value in entries(path):
        if kind == REMARK:
            notes.remark(key.decode())
        elif kind == MISSING:
            name = key.decode("utf-8", "replace")
            yield Problem("the list `keys`", "it is listed, but the file has no such entry", name or None, "missing")
        else:
            yield _record(path, key, value, notes)


def _record(path: Path, raw: bytes, value: bytes, notes: Notes) -> Regions | Problem:
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        return Problem(f"entry {raw!r}", "its key is not utf-8", kind="key_invalid")
    try:
        fields = load_pickle(value, f"{path}, entry {key!r}")
    except ValueError as error:
        return Problem(f"entry {key!r}", str(error), key)
    if not isinstance(fields, dict):
        return Problem(f"entry {key!r}", f"it is a {type(fields).__name__}, not a dict of fields", key)
    try:
        return regions_of(key, fields, notes)
    except BadRow as error:
        return Problem.of(error, f"entry {key!r}", key)


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes, in_base64: bool):
    """Readers of the layout take features as float32 only."""
    environment = lmdb.open(str(path), map_size=_MAP_SIZE, subdir=True, lock=False, sync=False)
    keys: list[bytes] = []
    txn, size = environment.begin(write=True), 0

    def put(regions: Regions) -> None:
        nonlocal txn, size
        key = regions.key.encode()
        if key == KEYS:
            raise BadRow("the layout keeps its list of keys under the name `keys`", "key_invalid")
        fields = fields_of(regions, IGLUE_NAMES)
        fields.update(img_id=regions.key, num_boxes=len(regions))
        if in_base64:
            fields.update({name: base64.b64encode(fields[name].tobytes()) for name in ("features", "boxes")})
        value = pickle.dumps(fields, protocol=4)
        txn.put(key, value)
        keys.append(key)
        size += len(value)
        if size >= _COMMIT:
            txn.commit()
            txn, size = environment.begin(write=True), 0

    try:
        yield put
        txn.put(KEYS, pickle.dumps(keys, protocol=4))
        txn.commit()
        environment.sync(True)
    finally:
        environment.close()


BASE64 = Format(
    "volta-lmdb",
    "LMDB of pickled dicts with base64 arrays (Volta, IGLUE)",
    VG_IDS,
    ALL_FIELDS,
    matches,
    read,
    partial(write, in_base64=True),
    suffixes=(".lmdb",),
)
RAW = Format(
    "volta-lmdb-raw",
    "the same with plain arrays, a quarter smaller",
    VG_IDS,
    ALL_FIELDS,
    matches,
    read,
    partial(write, in_base64=False),
)
