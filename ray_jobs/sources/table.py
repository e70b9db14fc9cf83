"""Tables with a key and an image in each row: parquet, TSV and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cache import DataError, UsageError
from cache.keys import FILE_KEY_RULES, file_key, printable
from extractor.images import DecodePolicy, ImageError

from . import Item, Locator, Unusable, make_item
from .cells import cell_bytes
from .delimited import Dialect, FieldLocator, Row, delimited_rows
from .folder import Entry, FolderSource
from .parquet_rows import CellLocator, parquet_columns, parquet_keys
from .streams import MOST_CARRIED, Carried, StreamError, compression, first_bytes

SUFFIXES = tuple(f".{kind}{packed}" for kind in ("tsv", "csv") for packed in ("", ".gz", ".bz2", ".xz")) + (".parquet",)
IMAGES = "image img jpg jpeg png webp image_bytes base64_image b64_bytes image_base64 bytes base64".split()
KEYS = "key __key__ image_id img_id image_key id wit_ix file_name filename name image.path img.path".split()
ROW_NUMBER = "#"


@dataclass(frozen=True)
class Columns:
    """Which columns to read, and how: names, or numbers from 0 when there is no header.

    `image` and `key` are tried in order; ROW_NUMBER as a key is the row's number, from 0.
    """

    image: tuple[str, ...] = tuple(IMAGES)
    key: tuple[str, ...] = tuple(KEYS)
    header: bool = True
    quotes: bool = True
    separator: str | None = None  # None: by the suffix


class TableRow(NamedTuple):
    """`key` is the value of the key column, "" where it is missing; `column` that column's name, or ROW_NUMBER."""

    number: int
    key: str
    column: str
    locator: Locator
    source: str


class TableSource:
    """Images in the rows of tables, as bytes or base64.

    Parquet is read row group by row group, plain TSV and CSV by the rows' offsets, compressed ones in one pass. A row
    that lacks its image or cannot be parsed is a failure which names its line. The key is the value of a column (its
    last part or stem with --key name or stem), so that of several tables the same value is a duplicate.

    Raises:
        InputNotFound: nothing at the path.
        UsageError: an option that makes no sense.
        DataError: a single file that is no table, or without the columns.
    """

    name = "table"
    title = "parquet, TSV and CSV files with images in their rows"
    expects = f"one table ({' '.join(SUFFIXES)}), or a folder, pattern or list of them"
    key_form = "the value of the key column"
    key_rules = FILE_KEY_RULES
    options = {
        "image": f"column of the images (bytes or base64); default the first of {', '.join(IMAGES[:4])}, ...",
        "key": f"column of the keys, {ROW_NUMBER} for the row's number; default the first of {', '.join(KEYS[:3])} ...",
        "header": "no: there is none, columns are given by number from 0; default key=0, image=1",
        "quotes": "no: quotes are plain characters; for TSV and CSV",
        "separator": "between fields; default a tab in TSV, a comma in CSV",
    }
    examples = {"first.tsv/cat": "cat", "first.tsv/dog": "dog", "second.csv.gz/owl": "owl", "third.parquet/fox": "fox"}
    counts: Mapping[str, int] = {}

    def __init__(self, path: str, key_rule: str = "path", **options: str):
        self.path, self.key_rule = path, key_rule
        self.columns = _columns(**options)
        self._tables = _Tables(path)
        if self._tables.single:
            try:
                for _ in table_rows(path, self.columns):
                    break
            except (StreamError, OSError) as error:
                raise DataError(f"{printable(path)} cannot be read as a table: {error}") from error

    def items(self) -> Iterator[Item]:
        """Stream the rows of all tables."""
        for table in self._tables.entries():
            for row in rows_of(table, self.columns):
                yield make_item(file_key(row.key, self.key_rule), row.locator, row.source)


class _Tables(FolderSource):
    """The tables of a folder, a pattern or a list."""

    @property
    def single(self) -> bool:
        return self._starts == self._single

    def takes(self, path: str) -> bool:
        return is_table(path)


def is_table(path: str) -> bool:
    """Whether the name is that of a table."""
    return path.lower().endswith(SUFFIXES)


def rows_of(table: Entry, columns: Columns) -> Iterator[TableRow]:
    """Rows of a file of a listing. Damage becomes a last row that is unusable and hides what would have followed."""
    if isinstance(table.locator, Unusable):
        yield TableRow(0, table.relative, "", table.locator, table.source)
        return
    try:
        for row in table_rows(table.locator.path, columns):
            name = f"{table.relative}{ROW_NUMBER}{row.number}"
            if not row.key and not isinstance(row.locator, Unusable):
                row = row._replace(locator=Unusable("key_invalid", "the row has no key"))
            yield row._replace(key=row.key or name)
    except (StreamError, OSError, DataError) as error:
        kind = error.kind if isinstance(error, StreamError) else "unreadable"
        message = f"this table cannot be read to its end, what follows is not listed: {error}"
        yield TableRow(0, table.relative, "", Unusable(kind, message, hides=True), table.source)


def table_rows(path: str, columns: Columns) -> Iterator[TableRow]:
    """Every row of a table.

    Raises:
        DataError: there is no column of the images or of the keys; names those there are.
        StreamError: the file cannot be read on.
        OSError: it cannot be opened.
    """
    if first_bytes(path, 4) == b"PAR1" or path.lower().endswith(".parquet"):
        yield from _from_parquet(path, columns)
    else:
        yield from _from_text(path, columns)


def _from_parquet(path: str, columns: Columns) -> Iterator[TableRow]:
    where = printable(path)
    try:
        names = parquet_columns(path)
        image, key = _choose(names, columns, where)
        for number, (group, row, value) in enumerate(parquet_keys(path, None if key == ROW_NUMBER else key)):
            text = str(number) if key == ROW_NUMBER else "" if value is None else str(value)
            yield TableRow(number, text, key, CellLocator(path, group, row, image), f"{where}, row {number}")
    except (ImportError, MemoryError, OSError, DataError):
        raise
    except Exception as error:  # pyarrow meets damage with errors of many types
        raise StreamError("decode_error", f"it is no parquet file, or damaged: {error}") from error


def _from_text(path: str, columns: Columns) -> Iterator[TableRow]:
    where, packed = printable(path), compression(path) is not None
    separator = columns.separator or ("," if re.search(r"\.csv(\.\w+)?$", path.lower()) else "\t")
    dialect = Dialect(separator, columns.quotes)
    rows = delimited_rows(path, dialect)
    if columns.header:
        first = next(rows, None)
        names = first.fields if first else []
        image, key = _choose(names, columns, where)
        image_at, key_at = names.index(image), None if key == ROW_NUMBER else names.index(key)
    else:
        image, key = _choose(None, columns, where)
        image_at, key_at = int(image), None if key == ROW_NUMBER else int(key)
    for number, row in enumerate(rows):
        value = str(number) if key_at is None else row.fields[key_at].strip() if key_at < len(row.fields) else ""
        yield TableRow(number, value, key, _locate(path, row, image_at, dialect, packed), f"{where}, line {row.line}")


def _locate(path: str, row: Row, column: int, dialect: Dialect, packed: bool) -> Locator:
    if row.problem:
        return Unusable("unreadable", f"line {row.line} cannot be parsed: {row.problem}")
    if column >= len(row.fields):
        message = f"line {row.line} has {len(row.fields)} fields, but the image should be in field {column + 1}"
        return Unusable("unreadable", message)
    if not packed:
        return FieldLocator(path, row.offset, row.length, column, dialect)
    if len(row.fields[column]) > MOST_CARRIED:
        return Unusable("too_large", f"line {row.line} is too long to travel from a compressed table; unpack that")
    try:
        return Carried(row.offset, cell_bytes("", row.fields[column], DecodePolicy()))
    except ImageError as error:
        return Unusable(error.kind, error.message)


def _choose(names: list[str] | None, columns: Columns, where: str) -> tuple[str, str]:
    """The columns of images and keys, among the names of a header or, without one, numbers."""
    chosen = []
    for option, wanted in (("image", columns.image), ("key", columns.key)):
        there = wanted if names is None else {*names, ROW_NUMBER}
        found = next((name for name in wanted if name in there), None)
        if found is None:
            columns_there = ", ".join(map(repr, names[:20])) or "none"
            raise DataError(
                f"{where} has no column of the {option}s named {' or '.join(wanted[:4])}; its columns are "
                f"{columns_there}: say which, as in ?{option}=NAME"
            )
        chosen.append(found)
    return chosen[0], chosen[1]


def _columns(image: str = "", key: str = "", header: str = "yes", quotes: str = "yes", separator: str = "") -> Columns:
    for name, value in (("header", header), ("quotes", quotes)):
        if value not in ("yes", "no"):
            raise UsageError(f"{name}={value}: say yes or no")
    if len(separator) > 1 or separator in ('"', "\n", "\r"):
        raise UsageError(f"separator={separator!r} is not one character")
    chosen: dict[str, Any] = {"header": header == "yes", "quotes": quotes == "yes", "separator": separator or None}
    numbers = {"image": image or "1", "key": key or "0"}
    for name, value in {"image": image, "key": key}.items():
        if name == "key" and value == ROW_NUMBER:
            chosen["key"] = (ROW_NUMBER,)
        elif header == "no":
            if not numbers[name].isascii() or not numbers[name].isdigit():
                raise UsageError(f"{name}={value}: without a header, columns are given by number from 0")
            chosen[name] = (numbers[name],)
        elif value:
            chosen[name] = (value,)
    return Columns(**chosen)
