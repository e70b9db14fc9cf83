"""The bytes of one record: a self-describing, checksummed, little-endian layout without pickle.

    header   48 bytes   magic, version, flags, n, d, width, height, field count, payload length, checksum, reserved
    table    24 bytes a field   id, dtype, ndim, two dims, offset in the record, number of bytes
    payload  the arrays, zero-padded

The checksum is xxh3-64 over the key, the header with the checksum zeroed, the table and the payload, so a record that
is read under another key is found out too. LMDB puts a value that has pages of its own 16 bytes behind the page start;
arrays therefore start at record offsets that are 48 modulo 64, which makes them 64-byte aligned in the shard file, and
a record is padded to MIN_BYTES so that it does get pages of its own.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np
import xxhash

from .errors import CorruptRecord, InvalidRegions
from .regions import BFLOAT16, FEATURE_DTYPES, Regions

MAGIC = b"RVRC"
VERSION = 1
MIN_BYTES = 2048
HEADER = struct.Struct("<4sHHIIIIIQQI")
FIELD = struct.Struct("<HBBIIQI")
ALIGNMENT, ALIGNED_AT = 64, 48
MAX_FIELDS = 255

_DTYPES = {1: np.dtype("<f4"), 2: np.dtype("<f2"), 3: BFLOAT16, 4: np.dtype("<i4"), 5: np.dtype("u1")}
_DTYPE_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_FEATURE_CODES = (1, 2, 3)


class _Field(NamedTuple):
    id: int
    dims: str  # one character a dimension: n regions, d features, 4 coordinates, 16 (x) bytes, any size (*)
    codes: tuple[int, ...]


# In the order they are written: features last, so that everything small shares the first pages.
_FIELDS = {
    "boxes": _Field(1, "n4", (1,)),
    "scores": _Field(3, "n", (1,)),
    "class_ids": _Field(4, "n", (4,)),
    "class_probs": _Field(5, "n", (1,)),
    "attr_ids": _Field(6, "n", (4,)),
    "attr_probs": _Field(7, "n", (1,)),
    "source_digest": _Field(10, "x", (5,)),
    "class_scores": _Field(8, "n*", (1, 2)),
    "global_features": _Field(9, "*", _FEATURE_CODES),
    "features": _Field(2, "nd", _FEATURE_CODES),
}
_NAMES = {field.id: name for name, field in _FIELDS.items()}


def encode(regions: Regions, feature_dtype: str) -> bytes:
    """The record of `regions`, its features (and global features) cast to `feature_dtype`.

    Equal inputs give equal bytes.

    Raises:
        InvalidRegions: kind value_range, a feature is too large for `feature_dtype` (65504 for float16).
    """
    arrays = regions.arrays()
    for name in ("features", "global_features"):
        if name in arrays:
            arrays[name] = _cast(regions.key, name, arrays[name], feature_dtype)
    if regions.source_digest is not None:
        arrays["source_digest"] = np.frombuffer(regions.source_digest, np.uint8)

    table, payload = [], []
    start = end = HEADER.size + FIELD.size * len(arrays)
    for name, field in _FIELDS.items():
        if name in arrays:
            array = arrays[name]
            offset = end + (ALIGNED_AT - end) % ALIGNMENT
            dims = (*array.shape, 0)[:2]
            table.append(FIELD.pack(field.id, _DTYPE_CODES[array.dtype], array.ndim, *dims, offset, array.nbytes))
            payload += [bytes(offset - end), np.ascontiguousarray(array).reshape(-1).view(np.uint8)]
            end = offset + array.nbytes
    payload.append(bytes(max(0, MIN_BYTES - end)))

    n, d = regions.features.shape
    header = [MAGIC, VERSION, 0, n, d, regions.width, regions.height, len(arrays), max(end, MIN_BYTES) - start, 0, 0]
    body = [*table, *payload]
    digest = xxhash.xxh3_64(regions.key.encode())
    for part in (HEADER.pack(*header), *body):
        digest.update(part)
    header[9] = digest.intdigest()
    return b"".join([HEADER.pack(*header), *body])


def aligned_memory(size: int, offset: int) -> np.ndarray:
    """Memory for a value at `offset` of a shard, aligned as there, so that its arrays can be views; u8[size]."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = (offset - memory.ctypes.data) % ALIGNMENT
    return memory[start : start + size]


def decode(key: str, buffer: bytes | memoryview, check: bool = True) -> Regions:
    """The regions in a record. Arrays are views of `buffer` where it is aligned, else copies.

    Magic, version, lengths, offsets, overlaps and dims are always checked; values are not looked at. Fields with an
    unknown id are skipped: they come from a later version.

    Args:
        key: the key the record is stored under; part of the checksum.
        check: also compare the checksum.

    Raises:
        CorruptRecord: `buffer` is not a valid record of `key`.
    """
    size = len(buffer)
    if size < HEADER.size:
        raise CorruptRecord(key, f"{size} bytes are fewer than a header")
    magic, version, flags, n, d, width, height, count, payload, checksum, reserved = HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise CorruptRecord(key, f"it starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise CorruptRecord(key, f"record version {version} is not {VERSION}, the one this roivault reads")
    start = HEADER.size + FIELD.size * count
    if count > MAX_FIELDS or start + payload != size:
        raise CorruptRecord(key, f"its header promises {start + payload} bytes, there are {size}")
    if flags or reserved or not width or not height:
        raise CorruptRecord(key, "its header holds impossible values")
    if check:
        digest = xxhash.xxh3_64(key.encode())
        digest.update(HEADER.pack(magic, version, flags, n, d, width, height, count, payload, 0, reserved))
        digest.update(memoryview(buffer)[HEADER.size :])
        if digest.intdigest() != checksum:
            raise CorruptRecord(key, "its checksum is wrong")
    try:
        layout = _layout(n, d, size, bytes(buffer[HEADER.size : start]))
    except ValueError as error:
        raise CorruptRecord(key, str(error)) from None
    values = {name: np.ndarray(shape, dtype, buffer, offset) for name, shape, dtype, offset in layout}
    if not all([array.flags.aligned for array in values.values()]):
        values = {name: array if array.flags.aligned else array.copy() for name, array in values.items()}
    if "source_digest" in values:
        values["source_digest"] = values["source_digest"].tobytes()
    return Regions.trusted(key=key, width=width, height=height, **values)


@lru_cache(maxsize=4096)
def _layout(n: int, d: int, size: int, table: bytes) -> tuple[tuple[str, tuple[int, ...], np.dtype, int], ...]:
    """Check a field table. Cached: the records of a store share few tables, one for each number of regions.

    Returns: (name, shape, dtype, offset) of every known field. Raises: ValueError, what is wrong with it.
    """
    sizes = {"n": n, "d": d, "4": 4, "x": 16}
    layout = {}
    end = HEADER.size + len(table)
    for field_id, code, ndim, *dims, offset, nbytes in FIELD.iter_unpack(table):
        if offset < end or offset + nbytes > size:
            raise ValueError(f"field {field_id} lies outside of its place")
        end = offset + nbytes
        name = _NAMES.get(field_id)
        if name is None:
            continue
        field = _FIELDS[name]
        if name in layout:
            raise ValueError(f"field {name} occurs twice")
        if code not in field.codes:
            raise ValueError(f"{name} has dtype code {code}")
        dtype = _DTYPES[code]
        shape = tuple(dims[:ndim])
        wanted = tuple(sizes.get(dim, length) for dim, length in zip(field.dims, dims, strict=False))
        if ndim != len(field.dims) or shape != wanted:
            raise ValueError(f"{name} has {ndim} dims, {dims}, which do not fit n = {n}, d = {d}")
        if int(np.prod(shape, dtype=object)) * dtype.itemsize != nbytes:
            raise ValueError(f"{name} has {nbytes} bytes, which do not fit its dims {shape}")
        layout[name] = (name, shape, dtype, offset)
    if "boxes" not in layout or "features" not in layout:
        raise ValueError("it has no boxes or no features")
    return tuple(layout.values())


def check_features(regions: Regions, feature_dtype: str | None, dim: int | None) -> None:
    """Whether the features are what a store has; None: anything. Raises: CorruptRecord."""
    found = str(regions.features.dtype), regions.features.shape[1]
    if found != (feature_dtype or found[0], found[1] if dim is None else dim):
        raise CorruptRecord(
            regions.key, f"its features are {found[0]}[{found[1]}], the store's {feature_dtype}[{dim}]"
        )


def _cast(key: str, name: str, array: np.ndarray, feature_dtype: str) -> np.ndarray:
    dtype = FEATURE_DTYPES[feature_dtype]
    if array.dtype == dtype:
        return array
    limit = float(ml_dtypes.finfo(dtype).max)
    if array.size and (float(array.max()) > limit or float(array.min()) < -limit):
        raise InvalidRegions(key, "value_range", f"{name} exceeds {limit:g}, the largest {feature_dtype}; use float32")
    return array.astype(dtype)
