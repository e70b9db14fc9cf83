"""numpy's `.npy`, objects in it included, without numpy's own unpickling."""

from __future__ import annotations

from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from ..pickles import load_pickle

_MAX_BYTES = 1 << 33


def load_npy(file: BinaryIO, where: str = "") -> Any:
    """The array in a `.npy`, or the object that a zero-dimensional array of objects wraps.

    Args:
        where: it lies, for the error of an unsafe pickle.

    Raises: ValueError: it is not one, or is cut short; UnsafePickle.
    """
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
        shape, fortran, dtype = read_header(file)
    except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a .npy: {error}") from None
    if dtype.hasobject:
        return load_pickle(file, where)
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not 0 <= size <= _MAX_BYTES:
        raise ValueError(f"its header promises {size:,} bytes")
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"it is cut short: {len(data):,} of {size:,} bytes are there")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
