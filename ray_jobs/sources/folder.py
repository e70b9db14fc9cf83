"""Image files: a folder and all below it, one file, a glob, or a list file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cache import InputNotFound, UsageError
from cache.keys import FILE_KEY_RULES, file_key, printable
from extractor.image_formats import HEAD, sniff
from extractor.images import DecodePolicy, read

from . import Item, Locator, Unusable, make_item
from .patterns import find, is_pattern, split_fixed

IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm .tga .ico"
    " .jp2 .j2k .jxl .heic .heif .avif .svg".split()
)


@dataclass(frozen=True)
class FileLocator:
    """A file on a disk that every process of the job can see."""

    path: str

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        return read(self.path, key, policy, limit)


class Entry(NamedTuple):
    """A file of a listing: its path relative to where the listing started, and where it is for a person."""

    relative: str
    locator: Locator
    source: str


class FolderSource:
    """Image files below a folder, or those a glob or a list file names.

    A folder is listed directory by directory, names sorted within each by their bytes, files before subfolders. Links
    to folders are followed unless they lead back to a folder above; `*.roi` folders (stores) are passed over. A file
    counts as an image if its suffix says so, whatever it holds, or if it starts like one. A list file (`.txt`, or any
    file as `@file`) names one path per line, relative to itself. A folder that a glob or a list names stands for all
    in it. Keys are made from the path relative to the folder, to the fixed part of the glob, or to the list file.

    Raises:
        InputNotFound: nothing at the path, a folder that cannot be listed, or a glob that matches nothing.
        UsageError: a store given in place of images.
    """

    name = "folder"
    title = "files of a folder and all below it, one file, a pattern, or a list file"
    expects = "images, in folders of any depth"
    key_form = "holiday/cat.jpg"
    key_rules = FILE_KEY_RULES
    options: Mapping[str, str] = {}
    examples = {"cat.jpg": "cat.jpg", "holiday/2024/dog.png": "holiday/2024/dog.png"}
    counts: Mapping[str, int] = {}

    def __init__(self, path: str, key_rule: str = "path"):
        self.path, self.key_rule = path, key_rule
        if path.startswith("@") and not os.path.lexists(path):
            self.path = path[1:]
            self._starts = self._listed
        elif os.path.isdir(path):
            self._starts = self._folder
        elif os.path.lexists(path):
            is_list = path.lower().endswith(".txt") and not _starts_like_image(path)
            self._starts = self._listed if is_list else self._single
        elif is_pattern(path):
            self._starts = self._matching
        else:
            raise InputNotFound(f"no file or folder at {printable(path)}")
        self._check()

    def _check(self) -> None:
        try:
            if self._starts == self._folder:
                if _is_store(self.path):
                    raise UsageError(f"{printable(self.path)} is a store; SOURCE is where the images are")
                os.scandir(self.path).close()
            elif self._starts == self._listed:
                open(self.path, "rb").close()
        except OSError as error:
            raise InputNotFound(f"cannot read {printable(self.path)}: {error.strerror}") from error
        if self._starts == self._matching and next(self._starts(), None) is None:
            raise InputNotFound(f"nothing matches {printable(self.path)}")

    def items(self) -> Iterator[Item]:
        """Stream the listing."""
        for relative, locator, source in self.entries():
            whole = isinstance(locator, Unusable)  # a folder
            yield make_item(file_key(relative, "path" if whole else self.key_rule), locator, source)

    def entries(self) -> Iterator[Entry]:
        """The files, before they have keys."""
        for path, relative, chosen in self._starts():
            if os.path.isdir(path):
                yield from self._walk(path, relative)
            elif chosen or self.takes(path):
                yield Entry(relative, FileLocator(path), printable(path))

    def takes(self, path: str) -> bool:
        """Whether a file that the user did not name himself belongs to the listing."""
        return is_image(path)

    # Where a listing starts: (path, path relative to the source, listed whatever it is).

    def _folder(self) -> Iterator[tuple[str, str, bool]]:
        yield self.path, "", True

    def _single(self) -> Iterator[tuple[str, str, bool]]:
        yield self.path, os.path.basename(self.path), True

    def _matching(self) -> Iterator[tuple[str, str, bool]]:
        base, _ = split_fixed(self.path)
        for path in find(self.path):
            yield path, os.path.relpath(path, base), False

    def _listed(self) -> Iterator[tuple[str, str, bool]]:
        base = os.path.dirname(self.path)
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines):
                entry = os.fsdecode(line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line).rstrip("\r\n")
                if entry.strip():
                    path = os.path.normpath(os.path.join(base, entry))
                    inside = not os.path.isabs(entry)
                    yield path, os.path.normpath(entry) if inside else _below(path, base), True

    def _walk(self, folder: str, relative: str) -> Iterator[Entry]:
        pending: list[tuple[str, str, frozenset]] = [(folder, relative, frozenset())]
        while pending:
            folder, relative, above = pending.pop()
            try:
                status = os.stat(folder)
                identity = (status.st_dev, status.st_ino)
                if identity in above:
                    continue
                files, folders = _scan(folder)
            except OSError as error:
                kind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
                locator = Unusable(kind, f"this folder cannot be listed: {error.strerror}", hides=True)
                yield Entry(relative or ".", locator, printable(folder))
                continue
            for name in map(os.fsdecode, files):
                path = os.path.join(folder, name)
                if self.takes(path):
                    yield Entry(os.path.join(relative, name), FileLocator(path), printable(path))
            inside = above | {identity}
            for name in map(os.fsdecode, reversed(folders)):
                pending.append((os.path.join(folder, name), os.path.join(relative, name), inside))


def _scan(folder: str) -> tuple[list[bytes], list[bytes]]:
    """Names of the files and of the folders in a folder, each sorted. As bytes they take the least time and memory."""
    files, folders = [], []
    with os.scandir(os.fsencode(folder)) as entries:
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            if not is_folder:
                files.append(entry.name)
            elif not _is_store(os.fsdecode(entry.name)):
                folders.append(entry.name)
    return sorted(files), sorted(folders)


def _is_store(folder: str) -> bool:
    return folder.rstrip("/").endswith(".roi")


def _below(path: str, base: str) -> str:
    """An absolute path relative to `base` when it lies below it, else as it is."""
    relative = os.path.relpath(path, base or ".")
    return path if relative.startswith("..") else relative


def is_image(path: str) -> bool:
    """Whether a file's suffix says that it is an image, or it starts like one."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES or _starts_like_image(path)


def _starts_like_image(path: str) -> bool:
    """Whether the first bytes of a regular file are those of an image format, supported or not."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return sniff(file.read(HEAD)).kind != "not_an_image"
    except (OSError, ValueError):
        return False
