from __future__ import annotations

import numpy as np
import pytest

from cache import DataError, open_store
from cache.convert import convert

h5py = pytest.importorskip("h5py")

BOXES = np.array([[0, 0, 10, 20], [1, 2, 30, 40.5]], np.float32)
FEATURES = np.random.default_rng(0).random((2, 8), np.float32)


def put(file, key: str, **changes) -> None:
    """A group as the extraction scripts write it."""
    group = file.create_group(key)
    fields = {
        "features": FEATURES, "obj_id": np.array([0, 1599]), "obj_conf": np.array([0.9, 0.4], "f4"),
        "attr_id": np.array([399, 0]), "attr_conf": np.array([0.3, 0.2], "f4"), "boxes": BOXES, "img_w": 640,
        "img_h": 480,
    }  # fmt: skip
    for name, value in {**fields, **changes}.items():
        if value is not None:
            group[name] = value


def test_groups_as_the_scripts_write_them(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        put(file, "1007129816")
        put(file, "deep/er/key.jpg")
        put(file, "given", num_objects=2, captions=np.array([b"a dog"]), obj_id=None, obj_conf=None)
        put(file, "bad", boxes=BOXES[:, ::-1])
        put(file, "small", features=FEATURES[:, :4].reshape(-1)[:7])
        file.create_group("nothing")
    report = convert(tmp_path / "f.h5", tmp_path / "s.roi", feature_dtype="float32")
    assert (report.source_format, report.records, report.without_place) == ("iglue-h5", 3, {"captions": 1})
    assert {(p.key, p.kind) for p in report.problems} == {("bad", "bad_boxes"), ("small", "value_range")}
    store = open_store(tmp_path / "s.roi")
    assert set(store) == {"1007129816", "deep/er/key.jpg", "given"}
    regions = store["1007129816"]
    assert regions.class_ids.tolist() == [0, 1599] and regions.attr_ids.tolist() == [399, 0]
    assert regions.features.tobytes() == FEATURES.tobytes() and regions.boxes.tobytes() == BOXES.tobytes()
    assert store["given"].class_ids is None and store["given"].scores is None


def test_what_is_written_has_the_types_of_the_scripts(tmp_path, put_store, full):
    record = full("k", 3)
    convert(put_store([record]), tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5") as file:
        group = file["k"]
        assert {name: str(group[name].dtype) for name in group} == {
            **{name: "float32" for name in ("features", "boxes", "obj_conf", "attr_conf", "cls_prob", "scores")},
            **{name: "int64" for name in ("obj_id", "attr_id", "img_w", "img_h")},
            "global_features": "float32",
            "source_digest": "uint8",
        }
        assert group["img_w"][()] == 640 and group["features"][()].tobytes() == record.features.tobytes()


def test_one_array_for_all_images_is_not_this_layout(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["features"] = np.zeros((2, 3, 8), np.float32)
        file["image_id"] = [1, 2]
    with pytest.raises(DataError, match="one array for all images"):
        convert(tmp_path / "f.h5", tmp_path / "s.roi")
    (tmp_path / "g.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50))
    with pytest.raises(DataError, match="g.h5 cannot be opened"):
        convert(tmp_path / "g.h5", tmp_path / "s.roi")
