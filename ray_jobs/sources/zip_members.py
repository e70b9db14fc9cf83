"""Members of zip files, by offset. The directory at their end is streamed: it may have millions of entries."""

from __future__ import annotations

import bz2
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from extractor.image_formats import HEAD
from extractor.images import DecodePolicy, ImageError

from . import Locator, Unusable
from .handles import read_at
from .streams import StreamError, check_head, open_regular

_END = struct.Struct("<4s4H2LH")  # end of the directory
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")  # of the directory
_LOCAL = struct.Struct("<4s5H3L2H")  # in front of a member's data
_ABSENT, _ABSENT64 = 0xFFFF, 0xFFFFFFFF
STORED, DEFLATE, BZIP2 = 0, 8, 12  # methods
ENCRYPTED, UTF8 = 1, 0x800  # flags
BZIP2_BLOCK = 2**20  # bytes, at most, from which something can be unpacked
_UNPACKERS = {DEFLATE: lambda: zlib.decompressobj(-15), BZIP2: bz2.BZ2Decompressor}
RATIO, FREE_BYTES = 200, 64 * 2**20  # beyond both, a member is a bomb


@dataclass(frozen=True)
class ZipLocator:
    """A member of a zip file; sizes and checksum are those of the directory."""

    path: str
    offset: int  # of the member's own header
    packed: int  # bytes in the file
    size: int  # bytes of the image
    method: int
    crc: int

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        try:
            return self._read(key, policy, limit)
        except OSError as error:
            raise ImageError(key, "unreadable", f"the archive cannot be read: {error.strerror or error}") from error

    def _read(self, key: str, policy: DecodePolicy, limit: int | None) -> bytes:
        local = read_at(self.path, self.offset, _LOCAL.size)
        if len(local) < _LOCAL.size or not local.startswith(b"PK\3\4"):
            raise ImageError(key, "unreadable", "there is no member where the archive's directory says; pack it again")
        start = self.offset + _LOCAL.size + sum(_LOCAL.unpack(local)[-2:])
        front = BZIP2_BLOCK if self.method == BZIP2 else 2 * HEAD
        head = self._unpack(key, read_at(self.path, start, min(self.packed, front)), HEAD)
        if self.size and not head:
            raise ImageError(key, "decode_error", "its packed bytes are damaged, they unpack to nothing")
        check_head(key, head, self.size, policy)
        if self.size > FREE_BYTES + RATIO * self.packed:
            message = f"it is said to unpack to more than {RATIO} times its size: this looks like a bomb"
            raise ImageError(key, "too_large", message)
        if self.packed > 1.02 * self.size + 1024:
            message = f"it is said to have {self.size} bytes, and {self.packed} when packed"
            raise ImageError(key, "decode_error", message)
        if limit is not None and limit <= HEAD:
            return head[:limit]
        packed = read_at(self.path, start, self.packed)
        if len(packed) < self.packed:
            message = f"the archive ends within it, after {len(packed)} of {self.packed} bytes"
            raise ImageError(key, "truncated", message)
        data = self._unpack(key, packed, self.size + 1)
        if len(data) != self.size or zlib.crc32(data) != self.crc:
            raise ImageError(key, "decode_error", "its bytes are not those that were packed: size or checksum differ")
        return data[:limit]

    def _unpack(self, key: str, packed: bytes, limit: int) -> bytes:
        if self.method == STORED:
            return packed[:limit]
        try:
            return _UNPACKERS[self.method]().decompress(packed, limit)
        except (zlib.error, OSError, ValueError, EOFError) as error:
            raise ImageError(key, "decode_error", f"its packed bytes are damaged: {error}") from error


class _Entry(NamedTuple):
    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    mode: int  # of the file it was, by unix


def zip_members(path: str, wanted: Callable[[str, Callable[[], bytes]], bool]) -> Iterator[tuple[str, Locator]]:
    """(name, locator) of the members that are `wanted`, in the order of the directory; see `tar_members`."""
    with open_regular(path) as file:
        count, start, shift = _find_directory(file)
        file.seek(start)
        for number in range(count):
            entry = _read_entry(file, number)
            if entry.name.endswith("/"):
                continue
            locator = _locate(path, entry, shift)
            if wanted(entry.name, lambda locator=locator: _head(locator)):
                yield entry.name, locator


def _head(locator: Locator) -> bytes:
    """The first bytes of a member, for its format; none if there are none to be had."""
    try:
        return locator.read("", DecodePolicy(), HEAD)
    except ImageError:
        return b""


def _locate(path: str, entry: _Entry, shift: int) -> Locator:
    if entry.flags & ENCRYPTED:
        return Unusable("unreadable", "it is encrypted; unpack the archive with its password")
    if entry.method != STORED and entry.method not in _UNPACKERS:
        return Unusable("unsupported", f"it is packed by method {entry.method}; pack it again, with deflate or without")
    if entry.mode & 0o170000 == 0o120000:
        return Unusable("unreadable", "it is a symbolic link, without bytes of its own")
    return ZipLocator(path, entry.offset + shift, entry.packed, entry.size, entry.method, entry.crc)


def _find_directory(file: BinaryIO) -> tuple[int, int, int]:
    """Number of entries, where the directory starts, and how many bytes stand in front of the archive."""
    total = file.seek(0, os.SEEK_END)
    tail_at = max(0, total - _END.size - _ABSENT)
    file.seek(tail_at)
    tail = file.read()
    marks = [mark.start() for mark in re.finditer(b"PK\5\6", tail) if mark.start() + _END.size <= len(tail)]
    if not marks:
        raise StreamError("truncated", "the directory that ends a zip archive is missing; it is not one, or was cut")
    # its comment may hold the same mark, but ends with the file; other bytes after it are tolerated
    exact = [at for at in marks if at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail)]
    at = (exact or marks)[0 if exact else -1]
    _, disk, first_disk, _, count, size, offset, _ = _END.unpack_from(tail, at)
    end = tail_at + at
    if found := _find_directory64(file, end):
        count, size, offset, end = found
    if disk or first_disk:
        raise StreamError("unsupported", "it is one of several volumes; join them first, with zip -s 0")
    shift = end - size - offset
    if shift < 0:
        raise StreamError("decode_error", "its directory is said to lie beyond the end of the file")
    return count, offset + shift, shift


def _find_directory64(file: BinaryIO, end: int) -> tuple[int, int, int, int] | None:
    """The same from the 64-bit record, and where that lies; None if there is none, and the small numbers hold."""
    if end < _LOCATOR64.size:
        return None
    file.seek(end - _LOCATOR64.size)
    magic, _, claimed, _ = _LOCATOR64.unpack(file.read(_LOCATOR64.size))
    if magic != b"PK\6\7":
        return None
    for at in (claimed, end - _LOCATOR64.size - _END64.size):  # the claim is wrong if bytes were put in front
        if 0 <= at <= end - _END64.size:
            file.seek(at)
            record = _END64.unpack(file.read(_END64.size))
            if record[0] == b"PK\6\6":
                return record[7], record[8], record[9], at
    raise StreamError("decode_error", "its 64-bit directory is not where it should be")


def _read_entry(file: BinaryIO, number: int) -> _Entry:
    head = file.read(_ENTRY.size)
    if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
        raise StreamError("decode_error", f"entry {number} of its directory is damaged")
    (_, _, system, _, _, flags, method, _, _, crc, packed, size, name, extra, comment, _, _, mode, offset) = (
        _ENTRY.unpack(head)
    )
    raw, extras = file.read(name), file.read(extra)
    if len(file.read(comment)) < comment or len(extras) < extra:
        raise StreamError("decode_error", f"entry {number} of its directory is cut off")
    size, packed, offset = _wide(extras, size, packed, offset)
    text = _decode(raw, flags)
    if system == 0:  # some writers on Windows leave its separator
        text = text.replace("\\", "/")
    return _Entry(text, flags, method, crc, packed, size, offset, mode >> 16 if system == 3 else 0)


def _decode(raw: bytes, flags: int) -> str:
    """Names are utf-8 when flagged, and mostly when not; else the old code page of the format."""
    if flags & UTF8:
        return raw.decode("utf-8", "surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp437")


def _wide(extras: bytes, *values: int) -> list[int]:
    """The values, of which those that do not fit in 32 bits are in an extra field of type 1."""
    wide = list(values)
    while len(extras) >= 4:
        kind, length = struct.unpack_from("<HH", extras)
        body, extras = extras[4 : 4 + length], extras[4 + length :]
        if kind != 1:
            continue
        for place, value in enumerate(wide):
            if value == _ABSENT64 and len(body) >= 8:
                wide[place], body = int.from_bytes(body[:8], "little"), body[8:]
    return wide
