"""Where images come from. A source streams `Item`s: a key, a locator that yields the encoded bytes, and a name for it.

    for item in open_source("photos/").items():
        data = item.locator.read(item.key, policy)

A new source is one module with a class as `Source` says, and one line in SOURCES; see docs/adding-a-source.md. Nothing
is read before `items()` gets there: a listing may have millions of entries.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from cache import InputNotFound, UsageError
from cache.keys import FILE_KEY_RULES, fits, printable, shorten
from extractor.images import DecodePolicy, ImageError

SOURCES = {
    "folder": "ray_jobs.sources.folder:FolderSource",
    "archive": "ray_jobs.sources.archive:ArchiveSource",
    "table": "ray_jobs.sources.table:TableSource",
    "coco": "ray_jobs.sources.coco:CocoSource",
    "flickr30k": "ray_jobs.sources.flickr30k:Flickr30kSource",
    "visual_genome": "ray_jobs.sources.visual_genome:VisualGenomeSource",
    "nlvr2": "ray_jobs.sources.nlvr2:Nlvr2Source",
    "marvl": "ray_jobs.sources.marvl:MarvlSource",
    "wit": "ray_jobs.sources.wit:WitSource",
    "open_images": "ray_jobs.sources.open_images:OpenImagesSource",
}


class Locator(Protocol):
    """Finds one encoded image, in any process: small, picklable, and its repr tells it from all others."""

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        """The encoded bytes, or about the first `limit` of them. Raises: ImageError."""


@dataclass(frozen=True)
class Unusable:
    """The locator of an entry that is known to be unusable from the listing alone.

    `hides` says that it stands for an unknown number of images which could not be listed; a job is not done then.
    """

    kind: str
    message: str
    hides: bool = False

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        raise ImageError(key, self.kind, self.message)


@dataclass(frozen=True)
class Item:
    """One input. `source` tells a person where it is; the same key from another `source` is a duplicate key."""

    key: str
    locator: Locator
    source: str

    @property
    def carried(self) -> int:
        """Bytes of image data that travel with the item, which is what a stream leaves behind."""
        return getattr(self.locator, "carried", 0)

    @property
    def hides(self) -> bool:
        return getattr(self.locator, "hides", False)


class Source(Protocol):
    """Streams the items of one dataset or place, in an order that depends on the names there alone.

    Class attributes describe it to `roivault sources list` and to the tests, which build `examples` on disk:

    Attributes:
        name: as in SOURCES.
        title: what it is, in a few words.
        expects: what must be at the path.
        key_form: what a key looks like.
        key_rules: what --key may be, the default first; one rule of its own for a published dataset.
        options: what may follow the path, as in `name:path?option=value`, and what each does.
        examples: path of a picture below the source's path -> its key. A part that ends in `.zip`, `.tar`, `.tsv`, ...
            is an archive or a table that holds the rest of the path as a member or as the key of a row.
        counts: number of pictures in each published part; empty where there is no such thing.
    """

    name: str
    title: str
    expects: str
    key_form: str
    key_rules: tuple[str, ...]
    options: Mapping[str, str]
    examples: Mapping[str, str]
    counts: Mapping[str, int]
    path: str
    key_rule: str

    def items(self) -> Iterator[Item]: ...


class Spec(NamedTuple):
    """`name:path?option=value&...`, taken apart."""

    name: str
    path: str
    options: dict[str, str]


def parse_spec(spec: str) -> Spec:
    """What SOURCE means: a path, or `name:path` for a named source. A path that exists is always a path.

    A path, or a pattern, that ends like an archive or a table is one; any other is of the source `folder`.

    Raises:
        UsageError: nothing given, or options that are none.
    """
    if not spec:
        raise UsageError("SOURCE is empty; give a folder, a picture, a pattern or a list file")
    name, colon, path = spec.partition(":")
    if not colon or name not in SOURCES or os.path.lexists(spec):
        name, path = _kind(spec), spec
    if name == "folder" or os.path.lexists(spec):
        return Spec(name, path, {})
    match = re.fullmatch(r"(.*?)\?(\w+=.*)", path, re.DOTALL)
    if not match or os.path.lexists(path):
        return Spec(name, path, {})
    pairs = [pair.partition("=") for pair in match[2].split("&")]
    if not all(equals for _, equals, _ in pairs):
        raise UsageError(f"SOURCE ends in {match[2]!r}; options are written ?option=value&option=value, and & is %26")
    return Spec(name, match[1], {option: unquote(value) for option, _, value in pairs})


def _kind(path: str) -> str:
    """The source of a path that names none."""
    from .archive import is_archive
    from .table import is_table

    if os.path.isdir(path):
        return "folder"
    plain = re.sub(r"\?\w+=.*", "", path)
    return "archive" if is_archive(plain) else "table" if is_table(plain) else "folder"


def source_class(name: str) -> type[Source]:
    """The class of a source. Raises: UsageError."""
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, 1)
        raise UsageError(f"there is no source {name!r}{f', do you mean {near[0]}?' if near else ''}; {_THERE_ARE}")
    module, _, cls = SOURCES[name].partition(":")
    return getattr(import_module(module), cls)


def open_source(spec: str, key_rule: str | None = None, stored_rule: str | None = None) -> Source:
    """The source that `spec` means.

    Args:
        spec: see `parse_spec`.
        key_rule: how keys are made of names, if the user says so.
        stored_rule: the rule of a store that is continued, taken if the source has it and the user says nothing.

    Raises:
        UsageError: a key rule or an option that the source does not have.
        InputNotFound: nothing at the path.
    """
    if key_rule not in (None, *FILE_KEY_RULES):
        raise UsageError(f"--key {key_rule!r} is not one of {', '.join(FILE_KEY_RULES)}")
    name, path, options = parse_spec(spec)
    cls = source_class(name)
    if key_rule and key_rule not in cls.key_rules:
        raise UsageError(f"--key {key_rule}: {name} makes keys by its own rule, such as {cls.key_form}; leave it out")
    for option in options:
        if option not in cls.options:
            there = ", ".join(cls.options) or "none"
            raise UsageError(f"{name} has no option {option!r}; options of {name}: {there}")
    if not path:
        raise UsageError(f"SOURCE {spec!r} names no path; write {name}:PATH")
    prefix = spec.partition(":")[0]
    if name == "folder" and ":" in spec and re.fullmatch(r"\w+", prefix) and not os.path.lexists(spec):
        near = difflib.get_close_matches(prefix, SOURCES, 1)
        if near and near[0] != "folder":
            raise InputNotFound(f"nothing at {printable(spec)}, and no source {prefix!r}; do you mean {near[0]}:...?")
    rule = key_rule or (stored_rule if stored_rule in cls.key_rules else cls.key_rules[0])
    return cls(path, rule, **options)


def make_item(key: str, locator: Locator, source: str) -> Item:
    """An item, under a shorter key and unusable if no store can hold the key that it should have."""
    if fits(key):
        return Item(key, locator, source)
    if not key:
        return Item("?", Unusable("key_invalid", "its key is empty"), source)
    message = f"the key has {len(key.encode())} bytes, at most 511 fit; use --key name or --key stem, or shorter names"
    return Item(shorten(key), Unusable("key_invalid", message), source)


_THERE_ARE = f"there are {', '.join(SOURCES)}"
