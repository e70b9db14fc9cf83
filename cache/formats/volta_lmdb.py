"""The LMDB of Volta and IGLUE: key -> pickled dict, and under `keys` the pickled list of all keys.

Their `npy_to_lmdb` keeps features and boxes as base64 of float32, their `h5_to_lmdb` as arrays; Volta reads both. Both
are read here whatever the dialect of each record.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import lmdb

from ..errors import DataError
from ..regions import Regions
from .base import ALL_FIELDS, VG_IDS, BadRow, Format, Notes, Problem, Vocabularies
from .fields import fields_of, regions_of
from .pickles import load_pickle

_KEYS = b"keys"
_NAMES = {
    "width": "img_w",
    "height": "img_h",
    "class_ids": "obj_id",
    "class_probs": "obj_conf",
    "attr_ids": "attr_id",
    "attr_probs": "attr_conf",
    "class_scores": "cls_prob",
}
_MAP_SIZE = 1 << 40  # address space; the file grows as it is filled
_COMMIT = 16 << 20  # bytes in one transaction


def matches(path: Path) -> bool:
    file = _data_file(path)
    try:
        with open(file, "rb") as data:
            return data.read(20)[16:20] == b"\xde\xc0\xef\xbe" and not (path / "manifest.json").exists()
    except OSError:
        return False


def read(path: Path, notes: Notes) -> Iterator[Regions | Problem]:
    """Raises: DataError: it is no LMDB, or is cut short."""
    with _opened(path) as environment, environment.begin() as txn:
        entries = txn.stat()["entries"]
        listed = txn.get(_KEYS)
        if listed is None:
            notes.remark("the list `keys` is missing: whoever wrote the file did not finish; all entries were read")
        else:
            yield from _check_list(txn, listed, entries - 1, notes)
        for raw, value in txn.cursor():
            if raw != _KEYS:
                yield _record(raw, value, notes)


def _check_list(txn: lmdb.Transaction, listed: bytes, entries: int, notes: Notes) -> Iterator[Problem]:
    """Keys that are promised and missing; a list that is shorter than the file is a remark."""
    try:
        keys = [key if isinstance(key, bytes) else str(key).encode() for key in load_pickle(listed)]
    except (ValueError, TypeError) as error:
        notes.remark(f"the list `keys` is damaged ({error}); all entries were read")
        return
    for key in keys:
        if not key or not txn.cursor().set_key(key):
            name = key.decode("utf-8", "replace")
            yield Problem("the list `keys`", "it is listed, but the file has no such entry", name or None, "missing")
    if len(set(keys)) < entries:
        notes.remark(
            f"the list `keys` has {len(set(keys)):,} keys, the file {entries:,} entries; all entries were read"
        )


def _record(raw: bytes, value: bytes, notes: Notes) -> Regions | Problem:
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        return Problem(f"entry {raw!r}", "its key is not utf-8", kind="key_invalid")
    try:
        fields = load_pickle(value)
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
        if key == _KEYS:
            raise BadRow("the layout keeps its list of keys under the name `keys`", "key_invalid")
        fields = fields_of(regions, _NAMES)
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
        txn.put(_KEYS, pickle.dumps(keys, protocol=4))
        txn.commit()
        environment.sync(True)
    finally:
        environment.close()


@contextmanager
def _opened(path: Path) -> Iterator[lmdb.Environment]:
    """A file that is cut short is found out before LMDB touches pages that are not there."""
    try:
        environment = lmdb.open(
            str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=True, create=False
        )
    except lmdb.Error as error:
        raise DataError(f"{path} cannot be opened as an LMDB ({error}): copy or download it again") from None
    try:
        pages, page_size = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
        size = os.path.getsize(_data_file(path))
        if size < pages * page_size:
            raise DataError(
                f"{path} is cut short: {size:,} of {pages * page_size:,} bytes are there; copy or download it again"
            )
        yield environment
    except lmdb.Error as error:
        raise DataError(f"{path} is damaged ({error}): copy or download it again") from None
    finally:
        environment.close()


def _data_file(path: Path) -> Path:
    return path / "data.mdb" if path.is_dir() else path


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
