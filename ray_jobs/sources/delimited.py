"""Rows of TSV and CSV files: by offset where the file is plain, in one pass where it is compressed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from extractor.images import DecodePolicy, ImageError

from .cells import cell_bytes
from .handles import read_at
from .streams import ForwardFile, StreamError, compression, open_regular

MOST_ROW = 2**28  # bytes: what is longer is no table
MOST_FIELD = 2**27


@dataclass(frozen=True)
class Dialect:
    """How fields are separated, and whether a quote character may enclose them."""

    separator: str
    quotes: bool = True

    def reader(self, lines: Iterator[str]) -> Iterator[list[str]]:
        if csv.field_size_limit() < MOST_FIELD:  # of the whole process: only ever raised
            csv.field_size_limit(MOST_FIELD)
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.separator, quoting=quoting, strict=True)


class Row(NamedTuple):
    """One row, or what is wrong with it: `problem` is set and `fields` is empty then."""

    line: int  # of the file, from 1
    offset: int
    length: int
    fields: list[str]
    problem: str = ""


@dataclass(frozen=True)
class FieldLocator:
    """An image in a field of a plain TSV or CSV file."""

    path: str
    offset: int
    length: int
    column: int
    dialect: Dialect

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        try:
            text = read_at(self.path, self.offset, self.length).decode("utf-8", "surrogateescape")
        except OSError as error:
            raise ImageError(key, "unreadable", f"the table cannot be read: {error.strerror or error}") from error
        try:
            lines = re.findall(r"[^\n]*\n|[^\n]+", text if self.offset else text.removeprefix("\ufeff"))
            cell = next(self.dialect.reader(iter(lines)))[self.column]
        except (csv.Error, StopIteration, IndexError) as error:
            raise ImageError(key, "unreadable", "the row is not the one that was listed; run again") from error
        return cell_bytes(key, cell, policy)[:limit]


class _Lines:
    """Lines of a file as text, for csv, and where the next one begins."""

    def __init__(self, file: BinaryIO | ForwardFile):
        self.file, self.offset, self.number, self.row_start = file, 0, 0, 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.file.readline(MOST_ROW + 1)
        if not line:
            raise StopIteration
        self.offset += len(line)
        self.number += 1
        if len(line) > MOST_ROW or self.offset - self.row_start > MOST_ROW:
            raise csv.Error(f"it has more than {MOST_ROW} bytes")
        if self.number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line.decode("utf-8", "surrogateescape")


def delimited_rows(path: str, dialect: Dialect) -> Iterator[Row]:
    """The rows of a file that are not blank, in order; one that cannot be parsed is named and the next is tried.

    Raises:
        StreamError: the file cannot be read on, or a quote swallows what follows.
        OSError: it cannot be opened.
    """
    file = ForwardFile(path) if compression(path) else open_regular(path, buffering=2**20)
    lines = _Lines(file)
    try:
        reader = dialect.reader(lines)
        while True:
            start, line = lines.offset, lines.number + 1
            lines.row_start = start
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if lines.number > line:
                    raise StreamError("decode_error", f"{_open_quote(line)} ({error})") from error
                if lines.offset - start > MOST_ROW:
                    raise StreamError("decode_error", f"line {line}: {error}; this is no table of that kind") from error
                reader = dialect.reader(lines)
                yield Row(line, start, lines.offset - start, [], str(error))
                continue
            if lines.number > line and dialect.separator == "\t" and any("\n" in f and "\t" in f for f in fields):
                raise StreamError("decode_error", _open_quote(line))
            if any(fields):
                yield Row(line, start, lines.offset - start, fields)
    finally:
        file.close()


def _open_quote(line: int) -> str:
    return f"a quote on line {line} takes in the lines after it; if quotes are plain characters, say ?quotes=no"
