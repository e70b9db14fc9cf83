from __future__ import annotations

import os
import sys
import types

import numpy as np
import pytest
import torch

from cache import DataError, open_store
from cache.convert import convert
from cache.formats import bua_npz

BOXES = np.array([[0, 0, 10, 20], [1, 2, 30, 40.5]], np.float32)
FEATURES = np.random.default_rng(0).random((2, 8), np.float32)


def put(folder, key: str, save=np.savez_compressed, **changes) -> None:
    """A file as the extraction saves it; `info` says the image's size again."""
    info = {
        "image_id": key, "image_h": 480, "image_w": 640, "num_boxes": 2, "objects_id": np.array([0, 1599]),
        "objects_conf": np.array([0.9, 0.4], "f4"), "attrs_id": np.array([0, 399]),
        "attrs_conf": np.array([0.3, 0.2], "f4"),
    }  # fmt: skip
    fields = {"x": FEATURES, "bbox": BOXES, "num_bbox": 2, "image_h": 480, "image_w": 640, "info": info}
    (folder / key).parent.mkdir(parents=True, exist_ok=True)
    save(folder / f"{key}.npz", **{**fields, **changes})


def test_files_as_the_extraction_saves_them(tmp_path):
    folder = tmp_path / "npz"
    put(folder, "1007129816")
    put(folder, "val/COCO_val2014_000000520430", save=np.savez, info=None)
    report = convert(folder, tmp_path / "s.roi", feature_dtype="float32")
    assert (report.source_format, report.records, report.problems, report.without_place) == ("bua-npz", 2, [], {})
    assert "background" in report.conventions["source"]
    regions = open_store(tmp_path / "s.roi")["1007129816"]
    assert (regions.width, regions.height) == (640, 480)
    assert regions.features.tobytes() == FEATURES.tobytes() and regions.boxes.tobytes() == BOXES.tobytes()
    assert regions.class_ids.tolist() == [0, 1599] and regions.attr_ids.tolist() == [0, 399]
    assert regions.class_probs.tolist() == regions.scores.tolist() == np.array([0.9, 0.4], "f4").tolist()
    plain = open_store(tmp_path / "s.roi")["val/COCO_val2014_000000520430"]
    assert plain.class_ids is None and plain.boxes.tobytes() == BOXES.tobytes()


@pytest.mark.parametrize("logits", ["attrs_scores", "attrs_conf"])
def test_files_of_the_detectron2_mode(tmp_path, logits):
    """Their attributes are tensors of torch, of found regions and of given boxes."""
    probs = np.array([[0.1, 0.7, 0.2], [0.5, 0.4, 0.1]], np.float32)
    info = {
        "objects": np.array([3, 1]), "cls_prob": np.eye(2, 4, 1, dtype=np.float32),
        "attrs_id": torch.from_numpy(probs), logits: torch.ones(5 if logits == "attrs_scores" else 2, 3),
    }  # fmt: skip
    folder = tmp_path / "npz"
    put(folder, "a", info=info, image_h_inner=600, image_w_inner=800)
    report = convert(folder, tmp_path / "s.roi", feature_dtype="float32")
    assert report.records == 1 and {"image_h_inner", "image_w_inner"} <= set(report.without_place)
    regions = open_store(tmp_path / "s.roi")["a"]
    assert regions.class_ids.tolist() == [3, 1] and regions.class_probs.tolist() == [0, 0]
    assert regions.attr_ids.tolist() == [1, 0] and regions.attr_probs.tolist() == probs.max(axis=1).tolist()
    assert regions.features.tobytes() == FEATURES.tobytes() and regions.class_scores.shape == (2, 4)


def test_what_is_damaged_is_reported_and_the_rest_kept(tmp_path):
    folder = tmp_path / "npz"
    for key in ("a", "cut", "middle", "z"):
        put(folder, key)
    put(folder, "attrs", info={"attrs_id": np.arange(3)})
    whole = (folder / "cut.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "middle.npz").write_bytes(whole[:60] + bytes(20) + whole[80:])
    (folder / "text.npz").write_text("hello")
    report = convert(folder, tmp_path / "s.roi")
    assert set(open_store(tmp_path / "s.roi")) == {"a", "z"} and report.exit_code == 65
    assert {p.key for p in report.problems} == {"attrs", "cut", "middle", "text"}


def test_a_file_with_too_large_arrays_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(bua_npz, "_MAX_BYTES", 10_000)
    monkeypatch.setattr(
        bua_npz,
        "load_npy",
        lambda file, where, load=bua_npz.load_npy: (
            load(file, where) if file.name != "more.npy" else pytest.fail("it was unpacked")
        ),
    )
    folder = tmp_path / "npz"
    put(folder, "good")
    put(folder, "bomb", more=np.zeros(10_000, np.uint8))
    assert (folder / "bomb.npz").stat().st_size < 10_000
    (problem,) = convert(folder, tmp_path / "s.roi").problems
    assert problem.key == "bomb" and "the most is 10,000" in problem.why
    assert set(open_store(tmp_path / "s.roi")) == {"good"}


def test_an_encrypted_file_is_reported(tmp_path):
    folder = tmp_path / "npz"
    put(folder, "good")
    put(folder, "locked")
    data = bytearray((folder / "locked.npz").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + flags] |= 1
    (folder / "locked.npz").write_bytes(data)
    (problem,) = convert(folder, tmp_path / "s.roi").problems
    assert problem.key == "locked" and "encrypted" in problem.why


def test_a_malicious_info_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    put(tmp_path / "npz", "a", info={"objects_id": Evil()})
    with pytest.raises(DataError, match=r"a\.npz, info\.npy: .*system"):
        convert(tmp_path / "npz", tmp_path / "s.roi")
    assert not (tmp_path / "ran").exists()


def test_it_is_only_read(tmp_path, put_store, full):
    with pytest.raises(Exception, match="bua-npz can be read, not written"):
        convert(put_store([full("a")]), tmp_path / "out", destination_format="bua-npz")


@pytest.mark.parametrize("attributes", [True, False])
def test_what_the_extraction_writes_is_read(peer, monkeypatch, tmp_path, attributes):
    """By its own `save_roi_features`, which also selects the regions."""
    torch, ops = pytest.importorskip("torch"), pytest.importorskip("torchvision.ops")
    for name, value in (("bua.caffe.modeling.layers.nms", {"nms": ops.nms}),
                        ("bua.caffe.modeling.box_regression", {"BUABoxes": None})):  # fmt: skip
        module = types.ModuleType(name)
        module.__dict__.update(value)
        monkeypatch.setitem(sys.modules, name, module)
    save = peer("bottom-up-attention.pytorch/utils/extract_utils.py").save_roi_features
    rng = torch.Generator().manual_seed(0)
    corners = torch.rand(40, 2, 2, generator=rng).sort(1).values.reshape(40, 4) * 400
    features = torch.rand(40, 8, generator=rng)
    scores, attr_scores = (torch.rand(40, count, generator=rng).softmax(1) for count in (1601, 401))
    options = types.SimpleNamespace(MIN_BOXES=10, MAX_BOXES=20, CONF_THRESH=0.2)
    config = types.SimpleNamespace(MODEL=types.SimpleNamespace(BUA=types.SimpleNamespace(EXTRACTOR=options)))
    folder = tmp_path / "npz"
    folder.mkdir()
    save(types.SimpleNamespace(output_dir=str(folder)), config, "1007129816.jpg", np.zeros((480, 640, 3), np.uint8),
         {"im_scale": 1.25}, [corners], [scores], [features], [attr_scores] if attributes else None)  # fmt: skip
    report = convert(folder, tmp_path / "s.roi", feature_dtype="float32")
    assert (report.records, report.problems, report.without_place) == (1, [], {})
    found = open_store(tmp_path / "s.roi")["1007129816"]
    rows = [features.tolist().index(row) for row in found.features.tolist()]
    assert 10 <= len(set(rows)) == len(found) <= 20 and (found.width, found.height) == (640, 480)
    assert np.array_equal(found.boxes, (corners / 1.25)[rows].numpy())
    wanted = [("class", scores)] + ([("attr", attr_scores)] if attributes else [])
    for what, values in wanted:
        best = values[rows, 1:].max(1)
        assert np.array_equal(getattr(found, f"{what}_ids"), best.indices.numpy())
        assert np.array_equal(getattr(found, f"{what}_probs"), best.values.numpy())
    assert attributes or found.attr_ids is None
