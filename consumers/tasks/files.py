"""Annotation files as they are shipped: plain, gzipped, or zipped; JSON, JSON lines or parquet."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from cache import DataError, InputNotFound, UsageError

SUFFIXES = ("", ".gz", ".zip")
ENCODING = "utf-8-sig"  # utf-8, whose byte order mark, which some editors write, is no part of the text


def check_annotations(folder: Path) -> None:
    """Raises: InputNotFound: there is no such folder."""
    if not folder.is_dir():
        raise InputNotFound(f"annotations {folder} are not a folder")


def find_file(path: Path) -> Path | None:
    """`path`, or the same name with .gz or .zip behind it, or .zip instead of its suffix, whichever is there."""
    forms = (*(Path(f"{path}{suffix}") for suffix in SUFFIXES), path.with_suffix(".zip"))
    return next((found for found in forms if found.is_file()), None)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """An annotation file as text, decompressed on the way.

    Raises:
        InputNotFound: neither `path` nor a compressed form of it is there.
        DataError: it cannot be decompressed, or is not utf-8.
    """
    found = find_file(path)
    if found is None:
        raise InputNotFound(f"{path} is not there, nor {path.name}.gz or {path.name}.zip")
    try:
        if found.suffix == ".gz":
            with gzip.open(found, "rt", encoding=ENCODING) as file:
                yield file
        elif found.suffix == ".zip":
            with zipfile.ZipFile(found) as archive, archive.open(_member(archive, found, path.name)) as data:
                yield io.TextIOWrapper(data, encoding=ENCODING)
        else:
            with open(found, encoding=ENCODING) as file:
                yield file
    except (zipfile.BadZipFile, EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{found} is damaged: {error}") from error


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> str:
    """The one file of that name in an archive, whatever a packer put beside it."""
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    named = [one for one in names if os.path.basename(one) == name and not one.startswith("__MACOSX/")]
    if len(named) != 1:
        raise DataError(f"{path} holds {', '.join(names) or 'nothing'}; wanted is one file named {name}")
    return named[0]


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises: InputNotFound, DataError."""
    with open_text(path) as file:
        try:
            return json.load(file)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} is not JSON: {error}") from error


def read_list(path: Path, name: str) -> list[Any]:
    """The list of that name in a JSON file that holds an object. Raises: InputNotFound, DataError."""
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get(name), list):
        raise DataError(f"{path} is not a JSON object with a list of {name}")
    return found[name]


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file with one JSON object a line; empty lines are skipped. Raises: InputNotFound, DataError."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, line {number}, is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}, is not a JSON object")
            yield record


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends. Raises: InputNotFound, DataError."""
    with open_text(path) as file:
        return file.read().removesuffix("\n").split("\n")


def read_parquet(path: Path, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, but for the columns `without`, such as pictures.

    Raises:
        InputNotFound: it is not there.
        UsageError: pyarrow is not installed.
        DataError: it is damaged.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"{path} is read with pyarrow, which is not installed: pip install pyarrow") from error
    if not path.is_file():
        raise InputNotFound(f"{path} is not there")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name not in without]
            for batch in file.iter_batches(columns=names):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged, or no parquet file: {error}") from error
