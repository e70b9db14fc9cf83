"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from .errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_bytes(option: str, text: int | str) -> int:
    """Bytes from "500MB", "8GiB" or a plain number, the value of an option. Raises: UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", str(text).strip().upper())
    size = float(match[1]) * _UNITS.get(match[2], 0) if match else 0
    if not 1 <= size < 1 << 63:
        raise UsageError(f"{option} {str(text)[:40]!r} is not a size; give for instance 8GiB or 500MB")
    return int(size)
