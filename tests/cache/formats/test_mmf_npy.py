from __future__ import annotations

import os
import sys
import types

import numpy as np
import pytest

from cache import DataError, open_store
from cache.convert import convert

BOXES = np.array([[0, 0, 10, 20], [1, 2, 30, 40.5]], np.float32)
FEATURES = np.random.default_rng(0).random((2, 8), np.float32)
CLS_PROB = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)


def put(folder, key: str, features=FEATURES, **changes) -> None:
    """The two files as the extraction script saves them."""
    info = {
        "bbox": BOXES, "num_boxes": 2, "objects": np.array([1, 0]), "cls_prob": CLS_PROB, "image_width": 640,
        "image_height": 480,
    }  # fmt: skip
    file = folder / f"{key}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, features)
    np.save(folder / f"{key}_info.npy", {**info, **changes})


def test_pairs_as_the_script_saves_them(tmp_path):
    folder = tmp_path / "features"
    put(folder, "1007129816")
    put(folder, "val/COCO_val2014_000000520430", num_boxes=1, source="camera")
    np.save(folder / "single.npy", {"features": FEATURES, "bbox": BOXES, "image_width": 6, "image_height": 5})
    report = convert(folder, tmp_path / "s.roi", feature_dtype="float32")
    assert (report.source_format, report.records, report.problems) == ("mmf-npy", 3, [])
    assert report.without_place == {"source": 1, "num_boxes (where it differs from the number of boxes)": 1}
    store = open_store(tmp_path / "s.roi")
    assert set(store) == {"1007129816", "val/COCO_val2014_000000520430", "single"}
    regions = store["1007129816"]
    assert regions.features.tobytes() == FEATURES.tobytes() and regions.boxes.tobytes() == BOXES.tobytes()
    assert regions.class_ids.tolist() == [1, 0] and regions.class_scores.tobytes() == CLS_PROB.tobytes()
    assert regions.class_probs.tolist() == [CLS_PROB[0, 1], CLS_PROB[1, 0]]


def test_what_is_damaged_is_reported_and_the_rest_kept(tmp_path):
    folder = tmp_path / "features"
    for key in ("a", "alone", "cut", "list", "lost", "objects", "z"):
        put(folder, key)
    (folder / "alone_info.npy").unlink()
    (folder / "lost.npy").unlink()
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:-10])
    np.save(folder / "list_info.npy", [1, 2, 3])
    put(folder, "objects", objects=np.arange(3))
    (folder / "text.npy").write_text("hello")
    report = convert(folder, tmp_path / "s.roi")
    assert set(open_store(tmp_path / "s.roi")) == {"a", "z"} and report.exit_code == 65
    assert {p.key: p.kind for p in report.problems} == {
        "alone": "missing", "lost": "missing", "cut": "decode_error", "list": "decode_error", "objects": "value_range",
        "text": "decode_error",
    }  # fmt: skip


def test_a_malicious_info_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    put(tmp_path / "features", "a", bbox=Evil())
    with pytest.raises(DataError, match=r"a_info\.npy: .*system"):
        convert(tmp_path / "features", tmp_path / "s.roi")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "attack",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo whose table would fill the memory
        b"\x80\x05\x96" + (1 << 45).to_bytes(8, "little") + b".",  # a bytearray that would
    ],
)
def test_an_info_that_asks_for_memory_is_reported(tmp_path, attack):
    put(tmp_path / "features", "a")
    info = tmp_path / "features" / "a_info.npy"
    info.write_bytes(info.read_bytes().partition(b"\n")[0] + b"\n" + attack)
    put(tmp_path / "features", "b")
    report = convert(tmp_path / "features", tmp_path / "s.roi")
    assert report.records == 1 and [(p.key, p.kind) for p in report.problems] == [("a", "decode_error")]


def test_keys_whose_files_would_meet(tmp_path, put_store, full):
    source = put_store([full("a"), full("a_info"), full("a.npy/b"), full("x/y.jpg"), full("x")])
    report = convert(source, tmp_path / "features", destination_format="mmf-npy")
    assert {p.key for p in report.problems} == {"a_info", "a.npy/b"}
    convert(tmp_path / "features", tmp_path / "back.roi")
    assert set(open_store(tmp_path / "back.roi")) == {"a", "x/y.jpg", "x"}


def test_mmf_reads_what_is_written(peer, tmp_path, put_store, full, monkeypatch):
    files = types.SimpleNamespace(PathManager=types.SimpleNamespace(open=open, exists=os.path.exists))
    for name in ("mmf", "mmf.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "mmf.utils.file_io", files)
    readers = peer("volta/features_extraction/mmf/mmf/datasets/databases/readers/feature_readers.py")  # needs torch
    records = [full("COCO_val2014_000000520430", 4), full("val/n161313", 36)]
    convert(put_store(records), tmp_path / "features", destination_format="mmf-npy")
    reader = readers.FeatureReader(str(tmp_path / "features"), depth_first=False, max_features=40)
    for record in records:
        features, info = reader.read(f"{record.key}.npy")
        n = len(record)
        assert np.array_equal(features[:n].numpy(), record.features) and not features[n:].any()
        assert info["max_features"] == n and np.array_equal(info["bbox"], record.boxes)
        assert (info["image_width"], info["image_height"]) == (640, 480)
        assert np.array_equal(info["objects"], record.class_ids)
