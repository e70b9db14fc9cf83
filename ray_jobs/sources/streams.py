"""Compressed files read once, from start to end, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zlib
from dataclasses import dataclass, field
from typing import BinaryIO

from extractor.image_formats import HEAD, sniff
from extractor.images import DecodePolicy, ImageError

MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
MOST_CARRIED = 64 * 2**20  # bytes of one image that may travel with its item
XZ_MEMORY = 512 * 2**20
PIECE = 2**18
FREE_BYTES, RATIO = 2**30, 200  # a stream that grows beyond 200 times its file and 1 GiB is a bomb


class StreamError(Exception):
    """A stream that cannot be read on: `kind` is one of the failure kinds."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Carried:
    """An image that was read from a stream: its bytes travel with it. `offset` is where in the unpacked stream."""

    offset: int
    data: bytes = field(repr=False)

    @property
    def carried(self) -> int:
        return len(self.data)

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        check_head(key, self.data, len(self.data), policy)
        return self.data[:limit]


def check_head(key: str, head: bytes, size: int, policy: DecodePolicy) -> None:
    """Refuse what is no picture or too large before more of it is read. Raises: ImageError."""
    if not head:
        raise ImageError(key, "empty", "it has no bytes")
    found = sniff(head[:HEAD])
    if found.format is None:
        raise ImageError(key, found.kind, found.reason)
    if size > policy.max_bytes:
        message = f"it has {size} bytes, more than any picture within max_pixels needs"
        raise ImageError(key, "too_large", message)


def compression(path: str) -> str | None:
    """How a file is compressed, by its first bytes; None if it is not. Raises: OSError."""
    return next((name for magic, name in MAGIC.items() if first_bytes(path, 8).startswith(magic)), None)


def first_bytes(path: str, count: int) -> bytes:
    """The start of a regular file. Raises: OSError."""
    with open_regular(path) as file:
        return file.read(count)


def open_regular(path: str, buffering: int = -1) -> BinaryIO:
    """Open a file for reading; a pipe or a device is an error instead of a wait. Raises: OSError."""
    file = open(path, "rb", buffering, opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "not a regular file", path)
    return file


class ForwardFile:
    """The unpacked content of a compressed file: `read`, `readline` and `tell`, and `seek` forward only.

    Raises StreamError for damage, a file that ends early and one that grows beyond all measure.
    """

    def __init__(self, path: str):
        kind = compression(path)
        self._raw = open_regular(path)
        if kind == "gzip":
            self._file = gzip.GzipFile(fileobj=self._raw, mode="rb")
        else:
            self._file = bz2.BZ2File(self._raw) if kind == "bzip2" else io.BufferedReader(_Xz(self._raw), PIECE)
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        if offset < self._at:
            raise StreamError("decode_error", f"it points back, to byte {offset}")
        while self._at < offset:
            if not self.read(min(PIECE, offset - self._at)):
                return

    def read(self, size: int) -> bytes:
        return self._count(self._try(self._file.read, size))

    def readline(self, limit: int) -> bytes:
        return self._count(self._try(self._file.readline, limit))

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _try(self, read, size: int) -> bytes:
        try:
            return read(size)
        except EOFError as error:
            raise StreamError("truncated", "the compressed file ends early") from error
        except (OSError, zlib.error, lzma.LZMAError, ValueError) as error:
            raise StreamError("decode_error", f"the compressed file is damaged: {error}") from error

    def _count(self, data: bytes) -> bytes:
        self._at += len(data)
        if self._at > FREE_BYTES + RATIO * self._raw.tell():
            raise StreamError("too_large", f"it unpacks to more than {RATIO} times its size: this looks like a bomb")
        return data


class _Xz(io.RawIOBase):
    """An xz file, with a limit on the memory that its header may ask for."""

    def __init__(self, raw: BinaryIO):
        self._raw, self._unpacker = raw, self._start()

    def _start(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while True:
            if self._unpacker.eof:  # another stream may follow, or zeros
                packed = self._unpacker.unused_data.lstrip(b"\0") or self._raw.read(PIECE).lstrip(b"\0")
                if not packed:
                    return 0
                self._unpacker = self._start()
            else:
                packed = self._raw.read(PIECE) if self._unpacker.needs_input else b""
                if not packed and self._unpacker.needs_input:
                    raise EOFError
            if data := self._unpacker.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)
