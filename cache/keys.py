"""How an image's name becomes its key: utf-8, `/` between folders, 1 to 511 bytes, the same on every machine.

Files of a folder by `file_key`; pictures of published datasets by the rules of dataset_keys.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import xxhash

from .dataset_keys import DATASETS as DATASETS
from .dataset_keys import candidates as candidates
from .dataset_keys import image_key as image_key
from .errors import InputNotFound, UsageError

MAX_KEY_BYTES = 511
SHORT_KEY_BYTES = 480  # of a key that is too long; leaves room for "#" and the hash

FILE_KEY_RULES = ("path", "name", "stem")


def printable(name: str) -> str:
    """A file name as valid unicode: bytes that are not utf-8 (lone surrogates in Python's str) become %XX."""
    return re.sub("[\udc80-\udcff]", lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", name)


def file_key(relative: str, rule: str = "path") -> str:
    """Key of a file from its path relative to the source it was listed from.

    `path` keeps all of it, suffix included; `name` only the file's name; `stem` the name without its last suffix
    ("a.v1.jpg" -> "a.v1", ".jpg" -> ".jpg").
    """
    path = printable(relative).replace(os.sep, "/")
    if rule == "path":
        return path
    name = path.rpartition("/")[2]
    return name if rule == "name" else os.path.splitext(name)[0]


def read_keys(path: Path) -> list[str]:
    """Keys from the file of --ids, one a line. Raises: InputNotFound; UsageError: it is no text, or has no keys."""
    try:
        keys = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        raise InputNotFound(f"--ids {path} does not exist") from None
    except (UnicodeDecodeError, OSError) as error:
        raise UsageError(f"--ids {path} cannot be read as a list of keys: {error}") from None
    if not keys:
        raise UsageError(f"--ids {path} has no keys")
    return keys


def why_unfit(key: str) -> str | None:
    """Why no store can hold the key; None if one can."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "the key is not valid unicode; percent-escape its bytes"
    return None if 1 <= size <= MAX_KEY_BYTES else f"the key has {size} bytes, allowed are 1 to {MAX_KEY_BYTES}"


def fits(key: str) -> bool:
    """Whether a store can hold the key."""
    return why_unfit(key) is None


def shorten(key: str) -> str:
    """Stands for a key that is too long: its first 480 bytes, cut between characters, `#`, and a hash of all of it."""
    data = key.encode()
    return f"{data[:SHORT_KEY_BYTES].decode('utf-8', 'ignore')}#{xxhash.xxh3_64_hexdigest(data)}"
