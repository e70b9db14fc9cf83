"""Annotation files of datasets: their rows, and the pictures that these are about."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from cache import DataError, InputNotFound
from cache.dataset_keys import candidates, field_of
from cache.keys import image_key, printable

from .dataset import DatasetSource

KINDS = (".jsonl", ".json", ".txt")
PACKED = ("", ".gz", ".zip")


def expected_keys(source: DatasetSource, path: str) -> Iterator[tuple[str, set[str]]]:
    """(annotation file, keys of the pictures of the dataset that it names), for each file that names any.

    Raises:
        InputNotFound: nothing at the path.
        DataError: a file that is damaged; names the line.
    """
    current, keys = "", set()
    for name, row in read_rows(path):
        if name != current:
            if keys:
                yield current, keys
            current, keys = name, set()
        keys.update(key for key in _keys_of(source, row) if source.keys.fullmatch(key))
    if keys:
        yield current, keys


def _keys_of(source: DatasetSource, row: Any) -> list[str]:
    if isinstance(row, str):
        return [image_key(source.dataset, row)] if source.dataset != "marvl" or "/" in row else []
    if not isinstance(row, dict) or field_of(row) not in source.fields:
        return []
    return [forms[0] for forms in candidates(row)]


def read_rows(path: str) -> Iterator[tuple[str, Any]]:
    """(file, row) of every JSON-lines, JSON and text file at the path or below, packed with gzip or zip or not.

    A row is what one line, one element of a list or one entry of an object holds; of a text file, a line.
    """
    files = [path] if os.path.isfile(path) else sorted(_files(path), key=os.fsencode)
    if not files:
        raise InputNotFound(f"no annotation files (*{', *'.join(KINDS)}) at {printable(path)}")
    for file in files:
        name = printable(os.path.relpath(file, path)) if os.path.isdir(path) else printable(os.path.basename(file))
        try:
            for text in _open(file):
                with text:
                    yield from ((name, row) for row in _rows(text, os.path.basename(file)))
        except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile, RecursionError) as error:
            raise DataError(f"the annotations {printable(file)} cannot be read: {error}") from error


def _files(folder: str) -> Iterator[str]:
    endings = tuple(kind + packed for kind in KINDS for packed in PACKED)
    for above, _, names in os.walk(folder):
        yield from (os.path.join(above, name) for name in names if name.lower().endswith(endings))


def _open(path: str) -> Iterator[IO[str]]:
    if path.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.lower().endswith(KINDS) and not member.startswith("__MACOSX/"):
                    yield io.TextIOWrapper(archive.open(member), encoding="utf-8-sig")
    elif path.lower().endswith(".gz"):
        yield gzip.open(path, "rt", encoding="utf-8-sig")
    else:
        yield open(path, encoding="utf-8-sig")


def _rows(text: IO[str], name: str) -> Iterator[Any]:
    if ".txt" in name.lower():
        yield from filter(None, map(str.strip, text))
    elif ".jsonl" in name.lower():
        for number, line in enumerate(text, 1):
            try:
                if line.strip():
                    yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    else:
        yield from _unpack(json.load(text))


def _unpack(content: Any) -> Iterator[Any]:
    """The rows of a JSON file: a list, an object of rows, or a list within an object beside other things."""
    if isinstance(content, dict):
        for name in ("images", "annotations"):
            if isinstance(content.get(name), list):
                content = content[name]
                break
        else:
            content = content.values()
    yield from content if not isinstance(content, (str, int, float, type(None))) else ()
