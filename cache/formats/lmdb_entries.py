"""The entries of a foreign LMDB, read in a process of its own, which a damaged file may kill.

`python -m cache.formats.lmdb_entries PATH` writes frames to its output: a kind, two lengths, and as many bytes.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import lmdb
import numpy as np

from ..errors import DataError
from ..pickles import load_pickle
from ..probe import own_process

KEYS = b"keys"
ENTRY, REMARK, MISSING = b"E", b"R", b"M"  # (key, value); (text, nothing); (key that is listed, nothing)
_ERROR, _END = b"X", b"Z"
_FRAME = struct.Struct("<cIQ")


def entries(path: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(kind, key or text, value) of every entry but the list of keys, and of what is to be said of that list.

    Raises: DataError: it is no LMDB, is cut short, or is damaged so that it cannot be read on.
    """
    child = subprocess.Popen(
        **own_process(__name__, os.path.abspath(path)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            kind, text, value = _receive(child.stdout)
            if kind == _END:
                return
            if kind == _ERROR:
                raise DataError(text.decode())
            yield kind, text, value
    except EOFError:
        code = child.wait()
        raise DataError(
            f"{path} is damaged: reading it ends its process ({f'signal {-code}' if code < 0 else f'code {code}'}); "
            "copy or download it again"
        ) from None
    finally:
        child.kill()
        child.communicate()


def _receive(pipe: BinaryIO) -> tuple[bytes, bytes, bytes]:
    head = pipe.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    kind, size, value_size = _FRAME.unpack(head)
    text, value = pipe.read(size), pipe.read(value_size)
    if len(text) + len(value) < size + value_size:
        raise EOFError
    return kind, text, value


def _send(pipe: BinaryIO, kind: bytes, text: bytes = b"", value: bytes | memoryview = b"") -> None:
    for part in (_FRAME.pack(kind, len(text), len(value)), text, value):
        pipe.write(part)


def _send_all(path: str, pipe: BinaryIO) -> None:
    is_folder = os.path.isdir(path)
    size = os.path.getsize(os.path.join(path, "data.mdb") if is_folder else path)
    with lmdb.open(path, subdir=is_folder, readonly=True, lock=False, create=False) as environment:
        wanted = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if size < wanted:
            raise DataError(f"{path} is cut short: {size:,} of {wanted:,} bytes are there; copy or download it again")
        with environment.begin(buffers=True) as txn:
            count = txn.stat()["entries"]
            _send_about_list(txn, count, pipe, f"{path}, the list `keys`")
            for place, (key, value) in enumerate(txn.cursor()):
                if place >= count:
                    raise DataError(f"{path} is damaged: it has more entries than LMDB counts; copy it again")
                if bytes(key) != KEYS:
                    _send(pipe, ENTRY, bytes(key), value)


def _send_about_list(txn: lmdb.Transaction, count: int, pipe: BinaryIO, where: str) -> None:
    """The list of keys is written last, so that a converter that was killed leaves none."""
    listed = txn.get(KEYS)
    if listed is None:
        _send(pipe, REMARK, b"the list `keys` is missing: whoever wrote the file did not finish; all entries were read")
        return
    try:
        keys = set(map(_key_bytes, load_pickle(bytes(listed), where)))
    except (ValueError, TypeError) as error:
        _send(pipe, REMARK, f"the list `keys` is damaged ({error}); all entries were read".encode())
        return
    for key in sorted(keys):
        if not 0 < len(key) <= 511 or not txn.cursor().set_key(key):
            _send(pipe, MISSING, key)
    if len(keys) < count - 1:
        text = f"the list `keys` has {len(keys):,} keys, the file {count - 1:,} entries; all entries were read"
        _send(pipe, REMARK, text.encode())


def _key_bytes(key: Any) -> bytes:
    if not isinstance(key, (bytes, str, int, np.integer)):
        raise TypeError(f"it lists a {type(key).__name__}")
    return key if isinstance(key, bytes) else str(key).encode()


def _main(path: str) -> None:
    pipe = sys.stdout.buffer
    try:
        _send_all(path, pipe)
        _send(pipe, _END)
    except (lmdb.Error, OSError) as error:
        _send(pipe, _ERROR, f"{path} cannot be read as an LMDB ({error}); copy or download it again".encode())
    except DataError as error:
        _send(pipe, _ERROR, str(error).encode())
    pipe.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
