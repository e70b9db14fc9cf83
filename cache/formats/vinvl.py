"""The TSV files of VinVL and OSCAR, in one folder.

    predictions.tsv   key, JSON {"objects": [{"rect", "class", "conf", "feature", "attributes", "attr_scores"}],
                      "image_h", "image_w"}; `feature` is base64 of float32
    features.tsv      key, number of boxes, base64 of float32 [n, d + 6]: OSCAR's form, with six numbers of geometry
                      behind each feature: x1/W, y1/H, x2/W, y2/H, w/W, h/H
    *.hw.tsv          key, image size: JSON [{"height", "width"}], or "h w"
    *.lineidx         byte offset of each line
    labelmap.json     {"label_to_idx": {name: number from 1}, "attribute_to_idx": ...}; any *.json of that form is taken

scene_graph_benchmark writes predictions.tsv alone, with the features in it; OSCAR takes features.tsv and, beside it,
predictions.tsv without. Both are read; OSCAR's form is written. The geometry is computed from the boxes when writing
and checked against them when reading: it is never part of the features.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DataError
from ..regions import Regions
from .base import MISSHAPEN, BadRow, Format, Notes, Problem, Vocabularies
from .fields import from_bytes, regions_of, whole
from .labelmap import LabelMap
from .rows import KeyedLines, check_key, key_of, lines

GEOMETRY = 6
_GEOMETRY_TOLERANCE = 1e-3
_FEATURES, _PREDICTIONS, _SIZES, _LABELS = "features.tsv", "predictions.tsv", "vinvl.hw.tsv", "labelmap.json"
_YAML = f"feature: {_FEATURES}\nlabel: {_PREDICTIONS}\nhw: {_SIZES}\nlabelmap: {_LABELS}\n"
_KNOWN = {"rect", "bbox_id", "class", "conf", "feature", "attributes", "attr_scores", "score", "class_id", "attr_id"}


def matches(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (_FEATURES, _PREDICTIONS))


def vocabularies(path: Path) -> dict[str, list[str]]:
    return LabelMap.of(path).vocabularies()


def read(path: Path, notes: Notes) -> Iterator[Regions | Problem]:
    """Raises: DataError: neither file of features is there."""
    labels = LabelMap.of(path)
    if labels.classes and not labels.given:
        notes.remark(
            "no *.json with label_to_idx that counts from 1 is there: class_ids and attr_ids count the names that "
            "occur, sorted, and are not VinVL's; put its label map into the folder to have those"
        )
    with ExitStack() as stack:
        predictions, sizes = (
            stack.enter_context(KeyedLines(file)) if file else None for file in (_predictions(path), _sizes(path))
        )
        main = path / _FEATURES if (path / _FEATURES).is_file() else path / _PREDICTIONS
        if not main.is_file():
            raise DataError(f"{path} has neither {_FEATURES} nor {_PREDICTIONS}")
        for number, line in lines(main):
            where, key = f"{main.name}, line {number}", None
            cells = line.rstrip(b"\r\n").split(b"\t")
            try:
                key = key_of(cells[0])
                if main.name == _FEATURES:
                    described = predictions.get(cells[0]) if predictions else None
                    fields = {**_described(described, labels, notes), **_features(cells)}
                else:
                    fields = _described(_cell(cells, 1), labels, notes)
                _add_size(fields, cells[0], sizes)
                _split_geometry(fields, own_file=main.name == _FEATURES)
                yield regions_of(key, fields, notes)
            except BadRow as error:
                yield Problem.of(error, where, key)


def _predictions(path: Path) -> Path | None:
    """Only beside features.tsv: else it is the main file."""
    both = all((path / name).is_file() for name in (_FEATURES, _PREDICTIONS))
    return path / _PREDICTIONS if both else None


def _sizes(path: Path) -> Path | None:
    return next(iter(sorted(path.glob("*hw.tsv"))), None)


def _cell(cells: list[bytes], place: int) -> bytes:
    if len(cells) <= place:
        raise BadRow(f"it has {len(cells)} columns, not {place + 1} or more", "truncated")
    return cells[place]


def _features(cells: list[bytes]) -> dict[str, Any]:
    """Of a line of features.tsv."""
    try:
        n = int(_cell(cells, 1))
    except ValueError:
        raise BadRow(f"its number of boxes is {cells[1][:40]!r}") from None
    values = from_bytes("features", _cell(cells, 2).decode("latin1"))
    if not 0 <= n <= values.size or (values.size % n if n else values.size):
        raise BadRow(f"features has {values.nbytes} bytes, which do not make {n} rows of float32", "truncated")
    return {"features": values.reshape(n, -1) if n else np.zeros((0, 0), np.float32)}


def _described(cell: bytes | None, labels: LabelMap, notes: Notes) -> dict[str, Any]:
    """Of the JSON of a line of predictions.tsv."""
    if cell is None:
        return {}
    try:
        row = json.loads(cell)
        objects = row["objects"]
        fields: dict[str, Any] = {name: row.get(name) for name in ("image_h", "image_w")}
        boxes = np.array([o["rect"] for o in objects], np.float64)
        if objects and boxes.shape != (len(objects), 4):
            raise ValueError(f"rects have the shape {boxes.shape}")
        fields["boxes"] = boxes.astype(np.float32).reshape(-1, 4)
        for name in sorted({name for o in objects for name in o} - _KNOWN):
            notes.drop(name)
        if any("feature" in o for o in objects):
            fields["features"] = np.stack([from_bytes("features", _text(o["feature"])) for o in objects])
        for name, field in (("conf", "class_probs"), ("score", "scores")):
            if objects and all(name in o for o in objects):
                fields[field] = np.array([o[name] for o in objects], np.float32)
        if "class_probs" in fields and "scores" not in fields:
            fields["scores"] = fields["class_probs"]  # their regions are ranked by it
        fields.update(labels.class_ids(objects), **labels.attributes_of(objects, notes))
    except MISSHAPEN as error:
        raise BadRow(f"its JSON cannot be used: {type(error).__name__}: {error}") from None
    if not objects:
        fields.setdefault("features", np.zeros((0, 0), np.float32))
    return fields


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a feature is a {type(value).__name__}, not base64")
    return value


def _add_size(fields: dict[str, Any], key: bytes, sizes: KeyedLines | None) -> None:
    if fields.get("image_h") is not None and fields.get("image_w") is not None:
        return
    cell = sizes.get(key) if sizes else None
    if cell is None:
        raise BadRow("no file says its size: put predictions.tsv with image_h and image_w, or a *.hw.tsv, beside it")
    try:
        if cell.lstrip()[:1] in (b"[", b"{"):
            size = json.loads(cell)
            size = size[0] if isinstance(size, list) else size
            fields.update(image_h=size["height"], image_w=size["width"])
        else:
            fields["image_h"], fields["image_w"] = map(int, cell.split())
    except MISSHAPEN as error:
        raise BadRow(f"its line of the image sizes cannot be used: {error}") from None


def _split_geometry(fields: dict[str, Any], own_file: bool) -> None:
    """Take the six numbers off features.tsv's rows; they give the boxes where no predictions.tsv does.

    Raises: BadRow: they are not there, or are not those of the boxes.
    """
    if not own_file or not fields["features"].shape[1]:
        fields.setdefault("boxes", np.zeros((0, 4), np.float32))
        return
    features, geometry = np.split(fields["features"], [-GEOMETRY], axis=1)
    others = BadRow(
        f"the last {GEOMETRY} of its {fields['features'].shape[1]} numbers a box are not the geometry of the boxes: "
        "the dtype, the image size or the layout is another",
        "value_range",
    )
    if not features.shape[1]:
        raise others
    width, height = (whole(name, fields[name]) for name in ("image_w", "image_h"))
    if "boxes" not in fields:
        fields["boxes"] = geometry[:, :4] * np.array([width, height, width, height], np.float32)
    if len(fields["boxes"]) != len(features):
        raise BadRow(f"there are {len(features)} features and {len(fields['boxes'])} boxes", "value_range")
    if not np.isfinite(fields["boxes"]).all():
        raise BadRow("boxes holds NaN or infinite values", "non_finite")
    expected = geometry_of(fields["boxes"], max(width, 1), max(height, 1))
    if not np.allclose(geometry, expected, atol=_GEOMETRY_TOLERANCE):
        raise others
    fields["features"] = features


def geometry_of(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    """x1/W, y1/H, x2/W, y2/H, w/W, h/H as float32, of f32[n,4] boxes in pixels; w = x2 - x1, without a + 1."""
    corners = boxes / np.array([width, height, width, height], np.float32)
    return np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1).astype(np.float32)


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes):
    """OSCAR's form. Ids travel as names where the store has them, and as numbers in any case."""
    path.mkdir()
    labels = LabelMap.for_vocabularies(vocabularies)
    (path / "vinvl.yaml").write_text(_YAML)
    (path / _LABELS).write_text(labels.to_json(), encoding="utf-8")
    with ExitStack() as stack:
        tables = [_Table(path / name, stack) for name in (_FEATURES, _PREDICTIONS, _SIZES)]
        rows = stack.enter_context(open(path / "imageid2idx.json", "w", encoding="utf-8"))
        rows.write("{")
        count = 0

        def put(regions: Regions) -> None:
            nonlocal count
            check_key(regions.key)
            wide = np.concatenate(
                [regions.features.astype(np.float32), geometry_of(regions.boxes, regions.width, regions.height)], axis=1
            )
            described = {
                "objects": _objects(regions, labels),
                "image_h": regions.height,
                "image_w": regions.width,
            }
            size = json.dumps([{"height": regions.height, "width": regions.width}])
            for table, *cells in (
                (tables[0], str(len(regions)).encode(), base64.b64encode(wide.tobytes())),
                (tables[1], json.dumps(described, ensure_ascii=False).encode()),
                (tables[2], size.encode()),
            ):
                table.add(regions.key.encode(), *cells)
            rows.write(f"{', ' if count else ''}{json.dumps(regions.key, ensure_ascii=False)}: {count}")
            count += 1

        yield put
        rows.write("}\n")


def _objects(regions: Regions, labels: LabelMap) -> list[dict[str, Any]]:
    """Numbers are written so that they come back bit by bit."""
    fields = {name: values.tolist() for name, values in regions.arrays().items() if name not in ("features", "boxes")}
    objects = []
    for i, rect in enumerate(regions.boxes.tolist()):
        entry: dict[str, Any] = {"rect": rect, "bbox_id": i}
        if "class_ids" in fields:
            entry.update(labels.named_class(fields["class_ids"][i]))
        if "class_probs" in fields:
            entry["conf"] = fields["class_probs"][i]
        if "scores" in fields:
            entry["score"] = fields["scores"][i]
        if "attr_ids" in fields:
            entry.update(labels.named_attribute(fields["attr_ids"][i]))
        if "attr_probs" in fields:
            entry["attr_scores"] = [fields["attr_probs"][i]]
        objects.append(entry)
    return objects


class _Table:
    """A TSV and its lineidx."""

    def __init__(self, path: Path, stack: ExitStack):
        self._file: BinaryIO = stack.enter_context(open(path, "wb"))
        self._index = stack.enter_context(open(path.with_suffix(".lineidx"), "w"))
        self._offset = 0

    def add(self, *cells: bytes) -> None:
        line = b"\t".join(cells) + b"\n"
        self._index.write(f"{self._offset}\n")
        self._file.write(line)
        self._offset += len(line)


FORMAT = Format(
    "vinvl-tsv",
    "folder of features.tsv, predictions.tsv and their lineidx (VinVL, OSCAR)",
    "labels are names; the numbers of a label map count from 1, after background, and are one more than class_ids",
    frozenset({"boxes", "features", "scores", "class_ids", "class_probs", "attr_ids", "attr_probs"}),
    matches,
    read,
    write,
    vocabularies=vocabularies,
)
