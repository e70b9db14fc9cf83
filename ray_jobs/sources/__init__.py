"""Where images come from. A source streams `Item`s: a key, a locator that yields the encoded bytes, and a name for it.

    for item in open_source("photos/").items():
        data = item.locator.read(item.key, policy)

A new source is one module with a class that has `name`, `__init__(path, key_rule)` and `items()`, and one line in
SOURCES. Nothing is read before `items()` gets there: a listing may have millions of entries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from cache import UsageError
from cache.keys import FILE_KEY_RULES
from extractor.images import DecodePolicy, ImageError

SOURCES = {
    "folder": "ray_jobs.sources.folder:FolderSource",
}


class Locator(Protocol):
    """Finds one encoded image, in any process."""

    def read(self, key: str, policy: DecodePolicy) -> bytes:
        """The encoded bytes. Raises: ImageError."""


@dataclass(frozen=True)
class Unusable:
    """The locator of an entry that is known to be unusable from the listing alone."""

    kind: str
    message: str

    def read(self, key: str, policy: DecodePolicy) -> bytes:
        raise ImageError(key, self.kind, self.message)


@dataclass(frozen=True)
class Item:
    """One input. `source` tells a person where it is; the same key from another `source` is a duplicate key."""

    key: str
    locator: Locator
    source: str


class Source(Protocol):
    """Streams the items of one dataset or folder, in an order that depends on their names alone."""

    name: str
    path: str

    def items(self) -> Iterator[Item]: ...


def open_source(spec: str, key_rule: str = "path") -> Source:
    """The source that `spec` means: a path, or `name:path` for a named one. A path that exists is always a path.

    Raises:
        UsageError: unknown key rule, or nothing given.
        InputNotFound: nothing at the path.
    """
    if key_rule not in FILE_KEY_RULES:
        raise UsageError(f"--key {key_rule!r} is not one of {', '.join(FILE_KEY_RULES)}")
    if not spec:
        raise UsageError("SOURCE is empty; give a folder, a picture, a pattern or a list file")
    name, colon, path = spec.partition(":")
    if not colon or name not in SOURCES or os.path.lexists(spec):
        name, path = "folder", spec
    module, _, cls = SOURCES[name].partition(":")
    return getattr(import_module(module), cls)(path, key_rule)
