"""TSV with base64 columns: LXMERT's, and that of the original bottom-up attention (BUTD).

    lxmert   img_id img_h img_w objects_id objects_conf attrs_id attrs_conf num_boxes boxes features
    butd     image_id image_w image_h num_boxes boxes features

Note the order of height and width. Neither has a heading. Boxes, features and confidences are float32, ids int64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..regions import Regions
from .base import VG_IDS, BadRow, Format, Notes, Problem, Vocabularies
from .fields import fields_of, from_bytes, regions_of
from .rows import check_key, key_of, lines

LXMERT_COLUMNS = (
    "img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "num_boxes", "boxes",
    "features",
)  # fmt: skip
BUTD_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_FIELDS = {
    "boxes": "boxes",
    "features": "features",
    "objects_id": "class_ids",
    "objects_conf": "class_probs",
    "attrs_id": "attr_ids",
    "attrs_conf": "attr_probs",
}
_WIDTHS = {"objects_id": 8, "attrs_id": 8, "objects_conf": 4, "attrs_conf": 4, "boxes": 16}  # bytes for each box
_PLAIN = ("num_boxes", "img_h", "img_w", "image_h", "image_w")


def matches(path: Path, columns: tuple[str, ...]) -> bool:
    """Whether the first line has these columns; it may be long, but its first ones are numbers of few digits."""
    if not path.is_file():
        return False
    for _, line in lines(path):
        cells = line.rstrip(b"\r\n").split(b"\t")
        plain = [cell for name, cell in zip(columns, cells, strict=False) if name in _PLAIN]
        return len(cells) == len(columns) and all(cell.strip().isdigit() for cell in plain)
    return False


def read(path: Path, notes: Notes, columns: tuple[str, ...]) -> Iterator[Regions | Problem]:
    for number, line in lines(path):
        where, key = f"line {number}", None
        cells = line.rstrip(b"\r\n").split(b"\t")
        try:
            key = key_of(cells[0])
            yield regions_of(key, _fields(cells, columns), notes)
        except BadRow as error:
            yield Problem.of(error, where, key)


def _fields(cells: list[bytes], columns: tuple[str, ...]) -> dict:
    """The values of a row; every length is checked against the number of boxes."""
    if len(cells) != len(columns):
        raise BadRow(f"it has {len(cells)} columns, not {len(columns)}", "truncated")
    row = {name: cell.decode("latin1") for name, cell in zip(columns, cells, strict=True)}
    for name in _PLAIN:
        if name in row and not (row[name].strip().isascii() and row[name].strip().isdigit()):
            raise BadRow(f"{name} is {row[name][:40]!r}, not a number")
    n = int(row["num_boxes"])
    fields: dict = {name: row[name] for name in columns[1:] if name in _PLAIN}
    for name in columns:
        if name not in _FIELDS:
            continue
        values = from_bytes(_FIELDS[name], row[name])
        size, wanted = values.nbytes, n * _WIDTHS.get(name, 4)
        if name == "features" and (size % wanted if n else size):
            raise BadRow(f"features has {size} bytes, which do not make {n} rows of float32", "truncated")
        if name in _WIDTHS and size != wanted:
            hint = ": the dtype is another" if size in (wanted // 2, 2 * wanted) else ""
            raise BadRow(f"{name} has {size} bytes, {n} boxes take {wanted}{hint}", "truncated")
        fields[name] = values
    return fields


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes, columns: tuple[str, ...]):
    width, height = ("img_w", "img_h") if "img_w" in columns else ("image_w", "image_h")
    names = {"width": width, "height": height, **{field: column for column, field in _FIELDS.items()}}
    with open(path, "wb") as file:

        def put(regions: Regions) -> None:
            check_key(regions.key)
            fields = fields_of(regions, names)
            fields.update({columns[0]: regions.key, "num_boxes": len(regions)})
            missing = [column for column in columns if column not in fields]
            if missing:
                raise BadRow(f"the layout needs {', '.join(missing)}, which it does not have", "unsupported")
            file.write(b"\t".join(_cell(fields[column]) for column in columns) + b"\n")

        yield put


def _cell(value) -> bytes:
    return str(value).encode() if isinstance(value, (int, str)) else base64.b64encode(value.tobytes())


_BUTD_CARRIES = frozenset({"boxes", "features"})
LXMERT = Format(
    "lxmert-tsv",
    "TSV of LXMERT, ten columns",
    VG_IDS,
    _BUTD_CARRIES | {"class_ids", "class_probs", "attr_ids", "attr_probs"},
    partial(matches, columns=LXMERT_COLUMNS),
    partial(read, columns=LXMERT_COLUMNS),
    partial(write, columns=LXMERT_COLUMNS),
    suffixes=(".tsv",),
)
BUTD = Format(
    "butd-tsv",
    "TSV of bottom-up attention, six columns",
    "no ids in the file",
    _BUTD_CARRIES,
    partial(matches, columns=BUTD_COLUMNS),
    partial(read, columns=BUTD_COLUMNS),
    partial(write, columns=BUTD_COLUMNS),
)
