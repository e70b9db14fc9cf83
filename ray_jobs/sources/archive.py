"""Archives, read where they are: zip and tar by offset, compressed tar files in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from cache import DataError
from cache.keys import FILE_KEY_RULES, file_key, printable
from extractor.image_formats import sniff

from . import Item, Locator, Unusable, make_item
from .folder import IMAGE_SUFFIXES, Entry, FolderSource
from .streams import StreamError, first_bytes
from .tar_members import tar_members
from .zip_members import zip_members

SUFFIXES = tuple(".zip .tar .tar.gz .tgz .tar.bz2 .tbz .tbz2 .tar.xz .txz".split())


class ArchiveSource:
    """Images in archives. Nothing is unpacked to disk, and archives within archives are not opened.

    A member counts as an image if its suffix says so, or if it starts like one; what macOS adds (`__MACOSX/`) is passed
    over. Members come in the order of the archive, and keys are made from their names; where SOURCE is a folder, a
    pattern or a list, the archive's own path comes first, so that members of several archives never collide. A member
    that is no plain file or lies outside (`../x`) is a failure, and so is an archive that is damaged or cut: what comes
    in front of the damage is used, and the job ends with exit code 65.

    Raises:
        InputNotFound: nothing at the path.
        DataError: a single file that is no archive.
    """

    name = "archive"
    title = "tar and zip archives, read where they are"
    expects = f"one archive ({' '.join(SUFFIXES)}), or a folder, pattern or list of them"
    key_form = "holiday/cat.jpg, with several archives photos.zip/holiday/cat.jpg"
    key_rules = FILE_KEY_RULES
    options: Mapping[str, str] = {}
    examples = {
        "one.tar/a/1.jpg": "one.tar/a/1.jpg",
        "one.tar/a/2.png": "one.tar/a/2.png",
        "three.tar.gz/1.jpg": "three.tar.gz/1.jpg",
        "two.zip/a/1.jpg": "two.zip/a/1.jpg",
    }
    counts: Mapping[str, int] = {}

    def __init__(self, path: str, key_rule: str = "path"):
        self.path, self.key_rule = path, key_rule
        self._several = _Archives(path)
        self._single = os.path.isfile(path) and not path.lower().endswith(".txt")
        if self._single and _reader(path) is None:
            raise DataError(f"{printable(path)} is no archive that can be read: give a zip or tar file")

    def items(self) -> Iterator[Item]:
        """Stream the members of all archives."""
        for archive in self._several.entries():
            prefix = "" if self._single else archive.relative + "/"
            if isinstance(archive.locator, Unusable):
                yield make_item(file_key(archive.relative), archive.locator, archive.source)
                continue
            for member in members(archive.locator.path):
                key = file_key(prefix + member.relative, self.key_rule)
                if isinstance(member.locator, Unusable) and member.locator.hides:
                    key = file_key(archive.relative)
                yield make_item(key, member.locator, member.source)


class _Archives(FolderSource):
    """The archives of a folder, a pattern or a list."""

    def takes(self, path: str) -> bool:
        return is_archive(path)


def is_archive(path: str) -> bool:
    """Whether the name is that of an archive."""
    return path.lower().endswith(SUFFIXES)


def members(path: str) -> Iterator[Entry]:
    """The images in an archive. Damage becomes a last entry that is unusable and hides what would have followed."""
    where = printable(path)
    try:
        reader = _reader(path)
        if reader is None:
            raise StreamError("decode_error", "it is neither a zip nor a tar file")
        for name, locator in reader(path, _is_image):
            clean = name[2:] if name.startswith("./") else name
            yield Entry(clean, _checked(clean, locator), f"{where}!{printable(clean)}")
    except (StreamError, OSError) as error:
        kind = error.kind if isinstance(error, StreamError) else "unreadable"
        message = f"this archive cannot be read to its end, what follows is not listed: {error}"
        yield Entry("", Unusable(kind, message, hides=True), where)


def _reader(path: str) -> Callable | None:
    """What reads the archive, by its content. Raises: OSError."""
    head = first_bytes(path, 512)
    if head.startswith((b"PK\3\4", b"PK\5\6")) or path.lower().endswith(".zip"):
        return zip_members
    packed = head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"))
    return tar_members if packed or head[257:262] == b"ustar" or path.lower().endswith(".tar") else None


def _is_image(name: str, head: Callable[[], bytes]) -> bool:
    if name.startswith("__MACOSX/"):
        return False
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES or sniff(head()).kind != "not_an_image"


def _checked(name: str, locator: Locator) -> Locator:
    parts = name.split("/")
    if ".." in parts or parts[0] == "" or "\0" in name:
        return Unusable("key_invalid", "its name leads out of the archive")
    return locator
