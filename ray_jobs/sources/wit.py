"""WIT, in the ways its pictures are handed around."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cache import InputNotFound
from cache.keys import printable

from . import Unusable
from .annotations import read_rows
from .dataset import DatasetSource
from .folder import Entry
from .table import ROW_NUMBER, Columns, TableRow, is_table, rows_of

_COLUMNS = Columns(
    image=("base64_image", "b64_bytes", "image_bytes", "image"), key=("wit_ix", "key", "image_url", "url", ROW_NUMBER)
)


class WitSource(DatasetSource):
    """Pictures of WIT: files named by wit_ix, or tables whose rows say it.

    A row of a table is known by its column `wit_ix`, else by its `image_url`, which the annotation files translate,
    else by its number: row n of a dump of the test pictures is wit-test_n. The suffix of a file or URL says nothing
    about its content; vector graphics fail as unsupported.
    """

    name = "wit"
    title = "WIT, as IGLUE uses it"
    expects = "pictures named by wit_ix, or TSV, CSV or parquet files with base64_image (or b64_bytes, image)"
    key_form = "wit-test_0, wit_545045"
    key_rules = ("wit",)
    options = {
        "split": "only that part of it",
        "annotations": "folder of annotation files, which say the wit_ix of an image_url",
    }
    examples = {
        "images/wit-test_0.jpg": "wit-test_0",
        "images/wit_545045.png": "wit_545045",
        "more.tar/wit-test_7.jpg": "wit-test_7",
        "dump.tsv/wit-test_12": "wit-test_12",
    }
    counts = {"test": None, "train": None}
    dataset = "wit"
    keys = re.compile(r"wit(?:-test)?_\d+")
    fields = ("wit_ix",)

    def __init__(self, path: str, key_rule: str, split: str | None = None, annotations: str | None = None):
        super().__init__(path, key_rule, split)
        self._annotations = annotations
        self._of_url: dict[str, str] | None = None
        if annotations is not None and not os.path.exists(annotations):
            raise InputNotFound(f"no annotations at {printable(annotations)}")

    def takes(self, path: str) -> bool:
        return is_table(path) or super().takes(path)

    def part(self, relative: str) -> str | None:
        return "test" if relative.rpartition("/")[2].startswith("wit-test_") else "train"

    def pictures(self) -> Iterator[Entry]:
        for entry in super().pictures():
            if is_table(entry.relative) and not isinstance(entry.locator, Unusable):
                yield from map(self._entry, rows_of(entry, _COLUMNS))
            else:
                yield entry

    def _entry(self, row: TableRow) -> Entry:
        key = self._key(row) if row.column else row.key
        if key is not None:
            return Entry(key, row.locator, row.source)
        remedy = "give the folder of the annotation files, as in wit:PATH?annotations=DIR"
        if row.column == ROW_NUMBER:
            remedy = "rows are numbered as the test pictures only in a table that is named so, or with ?split=test"
        message = f"{row.column} {row.key!r} does not tell its wit_ix: {remedy}"
        return Entry(row.key, Unusable("key_invalid", message), row.source)

    def _key(self, row: TableRow) -> str | None:
        if row.column == ROW_NUMBER:
            is_test = self.split == "test" or "test" in row.source.rpartition("/")[2]
            return f"wit-test_{row.number}" if is_test else None
        return row.key if row.column in ("wit_ix", "key") else self._urls().get(row.key)

    def _urls(self) -> dict[str, str]:
        """wit_ix of each image_url, from the annotation files; read when a table needs it."""
        if self._of_url is None:
            rows = read_rows(self._annotations) if self._annotations else ()
            both = (row for _, row in rows if isinstance(row, dict) and {"image_url", "wit_ix"} <= row.keys())
            self._of_url = {str(row["image_url"]): str(row["wit_ix"]) for row in both}
        return self._of_url
