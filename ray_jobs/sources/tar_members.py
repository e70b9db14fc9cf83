"""Members of tar files: by offset where the file is plain, in one pass where it is compressed."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from extractor.image_formats import HEAD
from extractor.images import DecodePolicy, ImageError

from . import Locator, Unusable
from .handles import read_at
from .streams import MOST_CARRIED, Carried, ForwardFile, StreamError, check_head, compression, open_regular

BLOCK = tarfile.BLOCKSIZE
MOST_HEADER = 2**20  # bytes of one extended header: names are shorter, what is longer is hostile
_KINDS = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link to another member"}


@dataclass(frozen=True)
class TarLocator:
    """A member of a plain tar file. `header` is the checksum of the block in front of its data."""

    path: str
    offset: int  # of the data
    size: int
    header: int

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        try:
            front = read_at(self.path, self.offset - BLOCK, BLOCK + min(self.size, HEAD))
            if zlib.crc32(front[:BLOCK]) != self.header:
                raise ImageError(key, "unreadable", "the archive is not the one that was listed; run again")
            head = front[BLOCK:]
            check_head(key, head, self.size, policy)
            size = self.size if limit is None else min(self.size, limit)
            data = head[:size] + read_at(self.path, self.offset + len(head), size - len(head))
        except OSError as error:
            raise ImageError(key, "unreadable", f"the archive cannot be read: {error.strerror or error}") from error
        if len(data) < size:
            raise ImageError(key, "truncated", f"the archive ends within it, after {len(data)} of {size} bytes")
        return data


class _Headers:
    """What tarfile reads headers from: it refuses absurd lengths, and remembers the last block for the end mark."""

    name, mode = None, "rb"

    def __init__(self, file):
        self.file, self.last = file, b""

    def tell(self) -> int:
        return self.file.tell()

    def seek(self, offset: int) -> None:
        self.file.seek(offset)

    def read(self, size: int) -> bytes:
        if size > MOST_HEADER:
            raise StreamError("decode_error", f"a header claims {size} bytes")
        self.last = self.file.read(size)
        return self.last


def tar_members(path: str, wanted: Callable[[str, Callable[[], bytes]], bool]) -> Iterator[tuple[str, Locator]]:
    """(name, locator) of the members that are `wanted`, in the order of the file.

    Args:
        path: the archive, plain or compressed with gzip, bzip2 or xz.
        wanted: is told the name and how to get the first bytes.

    Raises:
        StreamError: the archive cannot be read on.
        OSError: it cannot be opened.
    """
    packed = compression(path) is not None
    file = ForwardFile(path) if packed else open_regular(path, buffering=2 * BLOCK)
    headers, before = _Headers(file), -1
    try:
        archive = _attempt(lambda: tarfile.TarFile(fileobj=headers, encoding="utf-8", errors="surrogateescape"))
        while (member := _attempt(archive.next)) is not None:
            archive.members.clear()  # tarfile would keep them all
            if member.size < 0 or member.offset_data <= before:
                raise StreamError("decode_error", f"a header points back, to byte {member.offset_data}")
            before = member.offset_data
            locate = _carried if packed else _plain
            if not member.isdir() and (found := locate(path, file, headers, member, wanted)):
                yield found
        if len(headers.last) < BLOCK:
            raise StreamError("truncated", f"it ends at byte {file.tell()} without an end mark")
        if headers.last.strip(b"\0"):
            raise StreamError("decode_error", f"there is no member where one should begin, near byte {file.tell()}")
    finally:
        file.close()


def _attempt(step: Callable):
    try:
        return step()
    except StreamError:
        raise
    except tarfile.ReadError as error:
        kind = "truncated" if "unexpected end" in str(error) or "truncated" in str(error) else "decode_error"
        raise StreamError(kind, f"it ends early or is damaged: {error}") from error
    except Exception as error:  # tarfile meets damage with errors of many types
        raise StreamError("decode_error", f"it is damaged: {type(error).__name__}: {error}") from error


def _odd(member: tarfile.TarInfo) -> Unusable | None:
    if member.issparse():
        return Unusable("unsupported", "it is stored as a sparse file, in pieces; pack it without --sparse")
    if not member.isreg():
        what = _KINDS.get(member.type, "a device or a pipe")
        return Unusable("unreadable", f"it is {what}, without bytes of its own; pack it with --dereference")
    return None


def _plain(path, file, headers, member, wanted) -> tuple[str, Locator] | None:
    if odd := _odd(member):
        return (member.name, odd) if wanted(member.name, lambda: b"") else None
    offset = member.offset_data
    if not wanted(member.name, lambda: read_at(path, offset, min(member.size, HEAD))):
        return None
    return member.name, TarLocator(path, offset, member.size, zlib.crc32(read_at(path, offset - BLOCK, BLOCK)))


def _carried(path, file, headers, member, wanted) -> tuple[str, Locator] | None:
    if odd := _odd(member):
        return (member.name, odd) if wanted(member.name, lambda: b"") else None
    head: list[bytes] = []

    def peek() -> bytes:
        head.append(file.read(min(member.size, HEAD)))
        return head[0]

    if not wanted(member.name, peek):
        return None
    if member.size > MOST_CARRIED:
        message = f"it has {member.size} bytes, at most {MOST_CARRIED} travel from a compressed archive; unpack that"
        return member.name, Unusable("too_large", message)
    data = b"".join(head)
    data += file.read(member.size - len(data))
    if len(data) < member.size:
        return member.name, Unusable("truncated", f"the archive ends within it, after {len(data)} bytes")
    return member.name, Carried(member.offset_data, data)
