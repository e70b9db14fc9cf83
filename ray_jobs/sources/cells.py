"""A cell of a table as an encoded image: bytes, base64 text, or bytes with a path beside them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from extractor.images import DecodePolicy, ImageError

from .streams import check_head

_WRAPPED = re.compile(r"""b'([^']*)'|b"([^"]*)\"""")
_DATA_URL = re.compile(r"data:[\w/+.-]+;base64,")


def cell_bytes(key: str, cell: Any, policy: DecodePolicy) -> bytes:
    """The encoded image in a cell. Text is base64, plain or as in URLs; a data URL, or bytes as Python prints them.

    Raises: ImageError: the cell is empty, holds something else, or its bytes are no picture.
    """
    if isinstance(cell, Mapping):
        if cell.get("bytes") is None and cell.get("path"):
            message = f"the row holds only the path {cell['path']!r}, no bytes; extract the folder with these files"
            raise ImageError(key, "missing", message)
        cell = cell.get("bytes")
    if isinstance(cell, str):
        cell = _unpack(key, cell)
    elif isinstance(cell, list):
        cell = _from_numbers(key, cell)
    elif cell is None:
        raise ImageError(key, "empty", "the row has no image")
    elif not isinstance(cell, bytes):
        raise ImageError(key, "not_an_image", f"the cell holds {type(cell).__name__}, neither bytes nor base64 text")
    check_head(key, cell, len(cell), policy)
    return cell


def _unpack(key: str, text: str) -> bytes:
    text = text.strip()
    if match := _WRAPPED.fullmatch(text):
        text = match[1] or match[2] or ""
    if match := _DATA_URL.match(text):
        text = text[match.end() :]
    try:
        raw = "".join(text.split()).translate({45: 43, 95: 47}).encode("ascii")  # of URLs: - for +, _ for /
        return base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ImageError(key, "decode_error", f"the cell is not base64: {error}") from error


def _from_numbers(key: str, numbers: list) -> bytes:
    try:
        return bytes(numbers)
    except (TypeError, ValueError) as error:
        raise ImageError(key, "not_an_image", "the cell is a list, but not of bytes") from error
