from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from cache import DataError, StoreWriter, open_store
from cache.convert import convert
from cache.formats.vinvl import geometry_of

BOXES = np.array([[0, 0, 10, 20], [1.5, 2, 30, 40.5]], np.float32)
FEATURES = np.random.default_rng(0).random((2, 8), np.float32)
GEOMETRY = np.array(
    [
        [0, 0, 10 / 640, 20 / 480, 10 / 640, 20 / 480],
        [1.5 / 640, 2 / 480, 30 / 640, 40.5 / 480, 28.5 / 640, 38.5 / 480],
    ],
    np.float32,
)


def b64(array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def objects(features: bool, **changes) -> list[dict]:
    """As scene_graph_benchmark writes them, attributes padded with names whose score is 0."""
    entries = []
    for i, name in enumerate(("dog", "cat")):
        entry = {
            "rect": BOXES[i].tolist(), "bbox_id": i, "class": name, "conf": [0.9, 0.4][i],
            "attributes": [["big", "red"], ["old", "wet"]][i], "attr_scores": [[0.2, 0.6], [0.0, 0.0]][i],
        }  # fmt: skip
        entries.append({**entry, **({"feature": b64(FEATURES[i])} if features else {}), **changes})
    return entries


@pytest.fixture
def put(tmp_path):
    def put(**tables: list[tuple]):
        folder = tmp_path / "vinvl"
        folder.mkdir(exist_ok=True)
        for name, rows in tables.items():
            lines = ["\t".join(c if isinstance(c, str) else json.dumps(c) for c in row) + "\n" for row in rows]
            (folder / f"{name.replace('_', '.')}.tsv").write_text("".join(lines), encoding="utf-8")
        return folder

    return put


def described(features: bool, size: bool = True, **changes) -> dict:
    return {"objects": objects(features, **changes), **({"image_h": 480, "image_w": 640} if size else {})}


def oscar(key: str, values=None) -> tuple:
    return (key, "2", b64(np.concatenate([FEATURES, GEOMETRY], 1) if values is None else values))


def check(path, key: str = "a") -> None:
    regions = open_store(path)[key]
    assert (regions.width, regions.height) == (640, 480)
    assert regions.features.tobytes() == FEATURES.tobytes() and regions.boxes.tobytes() == BOXES.tobytes()
    assert regions.scores.tolist() == regions.class_probs.tolist() == np.array([0.9, 0.4], "f4").tolist()


@pytest.mark.parametrize("sizes", [None, [{"height": 480, "width": 640}], "480 640"])
def test_predictions_alone_as_scene_graph_benchmark_writes_them(put, tmp_path, sizes):
    tables = {"predictions": [(key, described(True, sizes is None)) for key in "ab"]}
    if sizes:
        tables["train_hw"] = [("b", sizes), ("a", sizes)]
    report = convert(put(**tables), tmp_path / "s.roi", feature_dtype="float32")
    assert (report.source_format, report.records, report.problems) == ("vinvl-tsv", 2, [])
    assert report.without_place == {"attributes after the first of each box": 2}
    check(tmp_path / "s.roi")
    store = open_store(tmp_path / "s.roi")
    assert store.manifest.vocabularies == {"classes": ["cat", "dog"], "attributes": ["big", "red"]}
    assert store["a"].class_ids.tolist() == [1, 0] and store["a"].attr_ids.tolist() == [1, -1]
    assert store["a"].attr_probs.tolist() == np.array([0.6, 0], "f4").tolist()


def test_a_label_map_gives_the_ids(put, tmp_path):
    folder = put(predictions=[("a", described(True)), ("b", described(True, **{"class": "unicorn"}))])
    numbers = {"label_to_idx": {"ant": 1, "dog": 2, "cat": 3}, "attribute_to_idx": {"red": 1, "big": 2}}
    (folder / "VG-SGG-dicts-vgoi6-clipped.json").write_text(json.dumps(numbers))
    report = convert(folder, tmp_path / "s.roi")
    store = open_store(tmp_path / "s.roi")
    assert store.manifest.vocabularies == {"classes": ["ant", "dog", "cat"], "attributes": ["red", "big"]}
    assert store["a"].class_ids.tolist() == [1, 2] and store["a"].attr_ids.tolist() == [0, -1]
    assert [(p.key, p.where) for p in report.problems] == [("b", "predictions.tsv, line 2")]
    assert "unicorn" in report.problems[0].why


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_oscars_form_has_geometry_that_is_no_feature(put, tmp_path, order):
    folder = put(features=[oscar("a"), oscar("b")], predictions=[(key, described(False)) for key in order])
    report = convert(folder, tmp_path / "s.roi", feature_dtype="float32")
    assert (report.records, report.problems) == (2, []) and open_store(tmp_path / "s.roi").manifest.dim == 8
    check(tmp_path / "s.roi", "a")
    check(tmp_path / "s.roi", "b")


def test_boxes_come_from_the_geometry_when_nothing_else_has_them(put, tmp_path):
    folder = put(features=[oscar("a")], x_hw=[("a", [{"height": 480, "width": 640}])])
    assert convert(folder, tmp_path / "s.roi").records == 1
    regions = open_store(tmp_path / "s.roi")["a"]
    assert np.allclose(regions.boxes, BOXES, atol=1e-4) and regions.class_ids is None
    with pytest.raises(DataError, match="no file says its size"):
        convert(put(features=[oscar("a")], x_hw=[("b", "480 640")]), tmp_path / "t.roi")


BAD = {
    "float64": (
        oscar("bad", np.concatenate([FEATURES, GEOMETRY], 1).astype("f8")),
        described(False),
        "not the geometry",
    ),
    "no geometry": (oscar("bad", FEATURES), described(False), "not the geometry"),
    "another size": (oscar("bad"), {**described(False), "image_w": 333}, "the image size"),
    "count": (("bad", "3", oscar("bad")[2]), described(False), "3 rows"),
    "no count": (("bad", "x", "AAAA"), described(False), "number of boxes"),
    "columns": (("bad", "2"), described(False), "2 columns"),
    "json": (oscar("bad"), '{"objects": [', "JSON"),
    "no objects": (oscar("bad"), {"image_h": 1}, "objects"),
    "rect": (oscar("bad"), described(False, rect=[1, 2]), "JSON"),
    "boxes": (oscar("bad"), {**described(False), "objects": objects(False)[:1]}, "2 features and 1 boxes"),
    "box that is no number": (oscar("bad"), described(False, rect=[float("nan"), 0, 1, 1]), "boxes holds NaN"),
    "size in words": (oscar("bad"), {**described(False), "image_w": "wide"}, "image_w is not a number"),
    "infinite size": (oscar("bad"), {**described(False), "image_h": float("inf")}, "image_h is not a number"),
    "large size": (oscar("bad"), {**described(False), "image_h": 10**400}, "which cannot be"),
    "large count": (("bad", f"{10**30}", ""), described(False), "do not make"),
    "large number": (oscar("bad"), described(False, conf=10**400), "OverflowError"),
    "large score": (oscar("bad"), described(False, attr_scores=[10**400]), "OverflowError"),
    "no scores": (oscar("bad"), described(False, attr_id=1, attr_scores=[]), "IndexError"),
    "lists": (oscar("bad"), {**described(False), "objects": [[]]}, "TypeError"),
    "text": (oscar("bad"), {**described(False), "objects": "ab"}, "TypeError"),
    "a number of bytes": (oscar("bad"), described(False, feature=1 << 50), "a feature is a int, not base64"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_row_is_reported_and_the_rest_kept(put, tmp_path, case):
    row, prediction, why = BAD[case]
    good = described(False)
    folder = put(features=[oscar("a"), row, oscar("z")], predictions=[("a", good), ("bad", prediction), ("z", good)])
    report = convert(folder, tmp_path / "s.roi")
    assert (report.records, report.left_out, report.exit_code) == (2, 1, 65)
    (problem,) = report.problems
    assert (problem.key, problem.where) == ("bad", "features.tsv, line 2") and why in problem.why
    assert set(open_store(tmp_path / "s.roi")) == {"a", "z"}


@pytest.mark.parametrize("numbers", range(1, 7))
def test_rows_too_short_for_geometry_are_reported(put, tmp_path, numbers):
    short = ("bad", "2", b64(np.ones((2, numbers), np.float32)))
    folder = put(features=[oscar("a"), short], x_hw=[("a", "480 640"), ("bad", "480 640")])
    report = convert(folder, tmp_path / "s.roi")
    assert report.records == 1 and f"of its {numbers} numbers a box are not the geometry" in report.problems[0].why


@pytest.mark.parametrize(
    "size", ['{"height": "x", "width": 3}', f"{10**400} 3", f'[{{"height": {10**400}, "width": 3}}]']
)
def test_sizes_that_cannot_be_are_reported(put, tmp_path, size):
    folder = put(features=[oscar("a"), oscar("bad")], x_hw=[("a", "480 640"), ("bad", size)])
    report = convert(folder, tmp_path / "s.roi")
    assert report.records == 1 and report.problems[0].why.startswith("image_h is ")


@pytest.mark.parametrize(
    "content",
    ['{"label_to_idx": {"dog": Infinity}}', '{"label_to_idx": {"dog": 0, "cat": 1}}', '{"label_to_idx": [1]}',
     "[" * 100_000, None],
)  # fmt: skip
def test_other_json_beside_the_tables_is_no_label_map(put, tmp_path, content):
    folder = put(predictions=[("a", described(True))])
    if content is None:
        (folder / "x.json").mkdir()
    else:
        (folder / "x.json").write_text(content)
    report = convert(folder, tmp_path / "s.roi")
    assert report.records == 1 and "put its label map into the folder" in report.remarks[0]
    assert open_store(tmp_path / "s.roi").manifest.vocabularies["classes"] == ["cat", "dog"]


def test_numbers_of_rows_are_kept_where_the_label_map_was_lost(full, tmp_path):
    record = full("a", 3).replace(class_ids=np.array([2, 1, 2], np.int32))
    words = {"classes": ["ant", "cat", "dog", "eel"], "attributes": list("wxyz")}
    with StoreWriter(tmp_path / "s.roi", "float32", None, words) as writer:
        writer.write([record])
    convert(tmp_path / "s.roi", tmp_path / "v", destination_format="vinvl-tsv")
    (tmp_path / "v" / "labelmap.json").unlink()
    report = convert(tmp_path / "v", tmp_path / "t.roi")
    store = open_store(tmp_path / "t.roi")
    assert (report.left_out, report.remarks, dict(store.manifest.vocabularies)) == (0, [], {})
    assert store["a"].class_ids.tolist() == [2, 1, 2] and store["a"].attr_ids.tolist() == record.attr_ids.tolist()


def test_background_in_a_label_map_is_no_class(put, tmp_path):
    folder = put(predictions=[("a", described(True))])
    (folder / "x.json").write_text(
        '{"label_to_idx": {"__background__": 0, "dog": 1, "cat": 2}, '
        '"attribute_to_idx": {"__background__": 0, "red": 1}}'
    )
    report = convert(folder, tmp_path / "s.roi")
    store = open_store(tmp_path / "s.roi")
    assert report.remarks == [] and store.manifest.vocabularies["classes"] == ["dog", "cat"]
    assert store["a"].class_ids.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["predictions.tsv", "x.hw.tsv", "features.tsv"])
def test_a_file_without_lines_is_not_read_into_memory(put, tmp_path, name, monkeypatch):
    folder = put(features=[oscar("a")], predictions=[("a", described(False, size=False))], x_hw=[("a", "480 640")])
    monkeypatch.setattr("cache.formats.rows.MAX_LINE", 1000)
    assert convert(folder, tmp_path / "s.roi").records == 1
    with open(folder / name, "r+b") as file:
        file.truncate(1 << 40)  # a hole, which takes no room on the disk
        file.write(b"b")
    with pytest.raises(DataError, match=f"{name}, at byte [0-9,]+: a line of more than"):
        convert(folder, tmp_path / "t.roi")


def test_the_files_that_are_written(tmp_path, full):
    records = [full("COCO_val2014_000000520430", 4), full("ü", 2), full("none", 0)]
    words = {"classes": list("abcde"), "attributes": list("wxyz")}
    with StoreWriter(tmp_path / "s.roi", "float32", None, words) as writer:
        writer.write(records)
    convert(tmp_path / "s.roi", tmp_path / "out", destination_format="vinvl-tsv")
    out = tmp_path / "out"
    rows = json.loads((out / "imageid2idx.json").read_text())
    for name in ("features", "predictions", "vinvl.hw"):
        data = (out / f"{name}.tsv").read_bytes()
        starts = [int(line) for line in (out / f"{name}.lineidx").read_text().split()]
        assert len(starts) == 3 and starts[0] == 0
        for record in records:
            assert data[starts[rows[record.key]] :].startswith(f"{record.key}\t".encode())
    starts = [int(line) for line in (out / "features.lineidx").read_text().split()]
    for record in records:
        key, count, values = (
            (out / "features.tsv").read_bytes()[starts[rows[record.key]] :].split(b"\n")[0].split(b"\t")
        )
        wide = np.frombuffer(base64.b64decode(values), np.float32).reshape(int(count), 8 + 6)
        assert np.array_equal(wide[:, :8], record.features)
        assert np.array_equal(wide[:, 8:], geometry_of(record.boxes, record.width, record.height))
    numbers = json.loads((out / "labelmap.json").read_text())
    assert numbers["label_to_idx"] == {name: i + 1 for i, name in enumerate("abcde")}
    assert {name for line in (out / "vinvl.yaml").read_text().split("\n") for name in line.split(": ")[1:]} <= {
        file.name for file in out.iterdir()
    }


def test_geometry():
    assert np.allclose(geometry_of(BOXES, 640, 480), GEOMETRY, atol=1e-7)
