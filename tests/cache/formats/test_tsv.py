from __future__ import annotations

import base64
import re

import numpy as np
import pytest

from cache import open_store
from cache.convert import convert
from cache.formats import detect

BOXES = np.array([[0, 0, 10, 20], [1, 2, 30, 40.5]], np.float32)
FEATURES = np.random.default_rng(0).random((2, 8), np.float32)


def b64(array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def lxmert(key: str = "a", **changes) -> str:
    cells = {
        "img_id": key, "img_h": 480, "img_w": 640, "objects_id": b64(np.array([3, 1599])),
        "objects_conf": b64(np.array([0.9, 0.5], "f4")), "attrs_id": b64(np.array([399, 0])),
        "attrs_conf": b64(np.array([0.4, 0.1], "f4")), "num_boxes": 2, "boxes": b64(BOXES), "features": b64(FEATURES),
    }  # fmt: skip
    return "\t".join(str(cell) for cell in {**cells, **changes}.values()) + "\n"


def butd(key: str = "a") -> str:
    return f"{key}\t640\t480\t2\t{b64(BOXES)}\t{b64(FEATURES)}\n"


def test_height_and_width_are_in_their_own_order(tmp_path):
    for name, rows in (("lxmert-tsv", [lxmert("a"), lxmert("b")]), ("butd-tsv", [butd("a"), butd("b")])):
        path = tmp_path / f"{name}.tsv"
        path.write_text("".join(rows))
        assert detect(path).name == name
        report = convert(path, tmp_path / f"{name}.roi", feature_dtype="float32")
        assert (report.records, report.left_out, report.without_place) == (2, 0, {})
        regions = open_store(tmp_path / f"{name}.roi")["b"]
        assert (regions.width, regions.height) == (640, 480)
        assert regions.boxes.tobytes() == BOXES.tobytes() and regions.features.tobytes() == FEATURES.tobytes()
    regions = open_store(tmp_path / "lxmert-tsv.roi")["a"]
    assert regions.class_ids.tolist() == [3, 1599] and regions.attr_ids.tolist() == [399, 0]
    assert regions.scores.tolist() == regions.class_probs.tolist() == np.array([0.9, 0.5], "f4").tolist()


BAD = {
    "double boxes": (lxmert("bad", boxes=b64(BOXES.astype("f8"))), "boxes has 64 bytes, 2 boxes take 32: the dtype"),
    "ids as int32": (lxmert("bad", objects_id=b64(np.array([1, 2], "i4"))), "8 bytes, 2 boxes take 16: the dtype"),
    "half precision": (lxmert("bad", features=b64(FEATURES.astype("f2"))), "dimension 4, those before it 8"),
    "count": (lxmert("bad", num_boxes=3), "3 boxes take"),
    "no number": (lxmert("bad", img_w="wide"), "img_w is 'wide'"),
    "no base64": (lxmert("bad", boxes="!!!"), "boxes is not base64"),
    "columns": ("\t".join(lxmert("bad").split("\t")[:6]) + "\n", "6 columns, not 10"),
    "cut inside": (lxmert("bad").strip()[:-7] + "\n", "features"),
    "box": (lxmert("bad", boxes=b64(BOXES[:, ::-1])), "x2 < x1"),
    "nan": (lxmert("bad", features=b64(FEATURES * np.nan)), "NaN"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_row_is_reported_with_line_and_id_and_the_rest_kept(tmp_path, case):
    row, why = BAD[case]
    (tmp_path / "t.tsv").write_text(lxmert("a") + "\n" + row + lxmert("z"))
    report = convert(tmp_path / "t.tsv", tmp_path / "s.roi")
    assert (report.records, report.left_out, report.exit_code) == (2, 1, 65)
    (problem,) = report.problems
    assert (problem.key, problem.where) in (("bad", "line 3"), ("bad", "record 'bad'")) and re.search(why, problem.why)
    assert [f.key for f in open_store(tmp_path / "s.roi").failures()] == ["bad"]


def test_rows_without_an_id_or_with_one_twice(tmp_path):
    (tmp_path / "t.tsv").write_bytes(
        (lxmert("a") + lxmert("") + lxmert("a")).encode() + lxmert("x").replace("x", "\xff", 1).encode("latin1")
    )
    report = convert(tmp_path / "t.tsv", tmp_path / "s.roi")
    assert report.records == 1
    assert sorted((p.kind, p.where) for p in report.problems) == [
        ("duplicate_key", "record 'a'"), ("key_invalid", "line 2"), ("key_invalid", "line 4")
    ]  # fmt: skip


def test_a_last_line_that_is_cut_short(tmp_path):
    (tmp_path / "t.tsv").write_text(lxmert("a") + lxmert("b")[:200])
    report = convert(tmp_path / "t.tsv", tmp_path / "s.roi")
    assert report.records == 1 and [(p.where, p.key, p.kind) for p in report.problems] == [("line 2", "b", "truncated")]


def test_a_record_without_attributes_has_no_place_in_lxmert(tmp_path, put_store, full):
    plain = full("plain").replace(attr_ids=None, attr_probs=None)
    source = put_store([full("full"), plain])
    report = convert(source, tmp_path / "t.tsv")
    assert report.records == 1 and [(p.key, p.kind) for p in report.problems] == [("plain", "unsupported")]
    assert "attrs_id, attrs_conf" in report.problems[0].why
    assert convert(source, tmp_path / "b.tsv", destination_format="butd-tsv").records == 2


def test_lxmert_reads_what_is_written(peer, tmp_path, put_store, full):
    load = peer("lxmert/src/utils.py").load_obj_tsv
    records = [full("COCO_val2014_000000520430", 4), full("n161313", 36)]
    convert(put_store(records), tmp_path / "t.tsv")
    items = {item["img_id"]: item for item in load(tmp_path / "t.tsv")}
    assert len(items) == 2
    for record in records:
        item = items[record.key]
        assert (item["img_w"], item["img_h"], item["num_boxes"]) == (640, 480, len(record))
        for name, field in (
            ("boxes", "boxes"), ("features", "features"), ("objects_id", "class_ids"), ("objects_conf", "class_probs"),
            ("attrs_id", "attr_ids"), ("attrs_conf", "attr_probs"),
        ):  # fmt: skip
            assert np.array_equal(item[name], getattr(record, field)), name
