"""What the sources of published datasets share: pictures in folders and archives, keys by the rules of the dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping

from cache import DataError, UsageError
from cache.keys import file_key, image_key

from . import Item, Unusable, make_item
from .archive import is_archive, members
from .folder import Entry, FolderSource, is_image


class DatasetSource:
    """The pictures of a published dataset, wherever they lie below the path: in folders, or in archives.

    An archive in a folder is passed over when a folder of its name lies beside it: that is the same, unpacked. Files
    that are not the dataset's are passed over too; `roivault sources check` counts them. Where a dataset needs more
    than that, its class overrides `part` or `pictures`.

    Attributes:
        dataset: name of the key rule in cache/dataset_keys.py.
        keys: what a key of this dataset looks like.
        fields: of annotation rows, those that name pictures of this dataset.
        unpacked: names of folders that hold the content of an archive of another name.

    Raises:
        InputNotFound: nothing at the path.
        UsageError: a split that the dataset does not have.
    """

    options: Mapping[str, str] = {"split": "only that part of it"}
    unpacked: Mapping[str, str] = {}
    dataset: str
    keys: re.Pattern
    fields: tuple[str, ...]

    def __init__(self, path: str, key_rule: str, split: str | None = None):
        self.path, self.key_rule, self.split = path, key_rule, split
        if split is not None and split not in self.counts:
            raise UsageError(f"{self.name} has no split {split!r}; it has {', '.join(self.counts)}")
        self._places = _Places(path, self.takes)

    def items(self) -> Iterator[Item]:
        """Stream the pictures."""
        for part, item in self.parts():
            if item.hides or (part is not None and self.split in (None, part)):
                yield item

    def parts(self) -> Iterator[tuple[str | None, Item]]:
        """Everything that looks like a picture, with the part it belongs to.

        The part is None for a picture that is not of this dataset, "" for one whose part or key is not known.
        """
        for relative, locator, source in self.pictures():
            try:
                key = image_key(self.dataset, relative)
            except DataError as error:
                yield "", make_item(file_key(relative), Unusable("key_invalid", str(error)), source)
                continue
            if self.keys.fullmatch(key):
                yield self.part(relative), make_item(key, locator, source)
            else:
                part = "" if isinstance(locator, Unusable) else None
                yield part, make_item(file_key(relative), locator, source)

    def takes(self, path: str) -> bool:
        """Whether to look at a file: pictures and archives."""
        return is_archive(path) or is_image(path)

    def part(self, relative: str) -> str | None:
        """Which part of the dataset a picture belongs to, by its path; the only one where there are none."""
        return next(iter(self.counts))

    def pictures(self) -> Iterator[Entry]:
        """Files and members of archives; a member's path starts with its archive's, without suffix."""
        for entry in self._places.entries():
            if isinstance(entry.locator, Unusable) or not is_archive(entry.relative):
                yield entry
            elif not self._is_unpacked(entry.locator.path):
                yield from self._inside(entry)

    def _inside(self, archive: Entry) -> Iterator[Entry]:
        for relative, locator, source in members(archive.locator.path):
            whole = isinstance(locator, Unusable) and locator.hides
            yield Entry(archive.relative if whole else f"{_stem(archive.relative)}/{relative}", locator, source)

    def _is_unpacked(self, archive: str) -> bool:
        folder, name = os.path.split(_stem(archive))
        beside = [os.path.join(folder, each) for each in (name, self.unpacked.get(name, name))]
        return os.path.isdir(self.path) and any(map(os.path.isdir, beside))


class _Places(FolderSource):
    """The files of a folder, pattern or list that the dataset takes."""

    def __init__(self, path: str, takes: Callable[[str], bool]):
        self.takes = takes
        super().__init__(path)


def _stem(archive: str) -> str:
    """A path without the suffixes of an archive."""
    return re.sub(r"(\.tar)?\.\w+$", "", archive)
