from __future__ import annotations

import base64
import os
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import lmdb
import numpy as np
import pytest

from cache import DataError, open_store
from cache.convert import convert

RNG = np.random.default_rng(0)
BOXES = np.array([[0, 0, 10, 20], [1, 2, 30, 40.5]], np.float32)
FEATURES = RNG.random((2, 8), np.float32)
CLS_PROB = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)


def from_h5(**changes) -> dict:
    """A record as `h5_to_lmdb` writes it: numbers as zero-dimensional scalars."""
    record = {
        "features": FEATURES, "boxes": BOXES, "obj_id": np.array([5, 1599]), "obj_conf": np.array([0.9, 0.4], "f4"),
        "attr_id": np.array([0, 399]), "attr_conf": np.array([0.3, 0.2], "f4"), "img_w": np.int64(640),
        "img_h": np.int64(480), "img_id": "a",
    }  # fmt: skip
    return {**record, **changes}


def from_npy(**changes) -> dict:
    """A record as `npy_to_lmdb` writes it."""
    record = {
        "feature_path": "a", "features": base64.b64encode(FEATURES), "boxes": base64.b64encode(BOXES), "img_h": 480,
        "img_w": 640, "num_boxes": 2, "objects": np.array([1, 0]), "cls_prob": CLS_PROB,
    }  # fmt: skip
    return {**record, **changes}


@pytest.fixture
def put(tmp_path):
    def put(entries: dict, keys: list | None | bytes = b"all", subdir: bool = True):
        path = tmp_path / ("v.lmdb" if subdir else "v.mdb")
        with lmdb.open(str(path), map_size=1 << 24, subdir=subdir, lock=False) as env, env.begin(write=True) as txn:
            for key, value in entries.items():
                txn.put(key.encode(), value if isinstance(value, bytes) else pickle.dumps(value))
            if keys is not None:
                listed = [key.encode() for key in entries] if keys == b"all" else keys
                txn.put(b"keys", pickle.dumps(listed))
        return path

    return put


def test_what_lies_in_the_working_directory_is_not_run(put, tmp_path, monkeypatch):
    put({"a": from_h5()})
    for name in ("cache.py", "lmdb.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    assert convert(Path("v.lmdb"), Path("s.roi")).records == 1


@pytest.mark.parametrize("subdir", [True, False])
def test_both_dialects(put, tmp_path, subdir):
    source = put(
        {"a": from_h5(), "b": from_npy(), "c": from_h5(img_w="640", features=FEATURES.tobytes())}, subdir=subdir
    )
    report = convert(source, tmp_path / "s.roi", feature_dtype="float32")
    assert (report.records, report.problems, report.without_place, report.remarks) == (3, [], {}, [])
    store = open_store(tmp_path / "s.roi")
    for key in "abc":
        regions = store[key]
        assert (regions.width, regions.height) == (640, 480)
        assert regions.boxes.tobytes() == BOXES.tobytes() and regions.features.tobytes() == FEATURES.tobytes()
    assert store["a"].class_ids.tolist() == [5, 1599] and store["a"].attr_ids.tolist() == [0, 399]
    assert store["a"].scores.tolist() == store["a"].class_probs.tolist() == np.array([0.9, 0.4], "f4").tolist()
    assert store["b"].class_ids.tolist() == [1, 0] and store["b"].class_scores.tobytes() == CLS_PROB.tobytes()
    assert store["b"].class_probs.tolist() == [CLS_PROB[0, 1], CLS_PROB[1, 0]] and store["b"].scores is None
    assert store.manifest.fingerprint == {"converted_from": "volta-lmdb", "feature_dtype": "float32"}


def test_what_has_no_place_is_counted(put, tmp_path):
    source = put({"a": from_h5(captions=["x"]), "b": from_npy(num_boxes=1), "c": from_h5(captions=None)})
    report = convert(source, tmp_path / "s.roi")
    assert report.without_place == {"captions": 1, "num_boxes (where it differs from the number of boxes)": 1}


BAD = {
    "no sizes": (from_h5(img_w=None), "no width .img_w", "decode_error"),
    "no boxes": ({k: v for k, v in from_h5().items() if k != "boxes"}, "no boxes", "decode_error"),
    "too many features": (from_h5(features=RNG.random((3, 8), np.float32)), r"\(3, 8\)", "value_range"),
    "half a number": (from_npy(features=base64.b64encode(FEATURES.tobytes()[:-2])), "62 bytes", "truncated"),
    "nan": (from_h5(features=FEATURES * np.nan), "NaN", "non_finite"),
    "inside out": (from_h5(boxes=BOXES[:, ::-1].copy()), "x2 < x1", "bad_boxes"),
    "ids": (from_h5(obj_id=np.arange(3)), "class_ids has shape", "value_range"),
    "text": (from_h5(obj_conf=np.array(["x", "y"])), "dtype 'U1'|no numbers", "decode_error"),
    "size": (from_h5(img_h=0), "pixels large", "value_range"),
    "other dim": (from_h5(features=RNG.random((2, 9), np.float32)), "dimension 9, those before it 8", "value_range"),
    "a list": ([1, 2], "not a dict", "decode_error"),
    "cut": (pickle.dumps(from_h5())[:-20], "pickle", "decode_error"),
    "twice": (from_h5(objects=np.array([5, 1])), "says again", "decode_error"),
}


def test_records_that_attack_their_reader_are_reported_or_refused(put, tmp_path):
    memo = b"\x80\x02Nr\xff\xff\xff\x7f."  # an index whose table of lower ones would fill the memory
    report = convert(put({"a": from_h5(), "b": memo}), tmp_path / "s.roi")
    assert report.records == 1 and [(p.key, p.kind) for p in report.problems] == [("b", "decode_error")]
    report = convert(put({"a": from_h5()}, keys=[{"a": 1}]), tmp_path / "u.roi")
    assert report.records == 1 and "lists a dict" in str(report.remarks)
    write = b"\x80\x02c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__X\x05\x00\x00\x00wrong\x85s\x86b."
    with pytest.raises(DataError, match="entry 'c': .*__setstate__"):
        convert(put({"c": write}), tmp_path / "t.roi")


def test_damaged_records_are_reported_and_the_rest_kept(put, tmp_path):
    source = put({"a": from_h5(), **{key: value for key, (value, _, _) in BAD.items()}, "z": from_npy()})
    report = convert(source, tmp_path / "s.roi")
    assert (report.records, report.left_out, report.exit_code) == (2, len(BAD), 65)
    for problem in report.problems:
        _, why, kind = BAD[problem.key]
        assert problem.kind == kind and re.search(why, problem.why), problem
    failures = {failure.key: failure for failure in open_store(tmp_path / "s.roi").failures()}
    assert {key: failure.kind for key, failure in failures.items()} == {key: kind for key, (_, _, kind) in BAD.items()}
    assert all(report.source in failure.source for failure in failures.values())


def test_a_file_that_kills_its_reader(put, tmp_path):
    """Pages that point behind the end of the file end the process that follows them, which is not this one."""
    source = put({f"{i:03}": from_h5() for i in range(100)})
    data = bytearray((source / "data.mdb").read_bytes())
    for page in range(2, len(data) // 4096):
        flags = int.from_bytes(data[page * 4096 + 10 : page * 4096 + 12], "little")
        if flags & 1:  # a branch: its children's numbers
            for place in range(page * 4096 + 2048, (page + 1) * 4096):
                data[place] ^= 0x10
    (source / "data.mdb").write_bytes(data)
    with pytest.raises(DataError, match="v.lmdb"):
        convert(source, tmp_path / "s.roi")
    assert not (tmp_path / "s.roi").exists()


def test_an_unfinished_file_is_read_and_said_to_be_so(put, tmp_path):
    report = convert(put({"a": from_h5(), "b": from_h5()}, keys=None), tmp_path / "s.roi")
    assert report.records == 2 and "did not finish" in report.remarks[0]


def test_a_list_of_keys_that_does_not_fit(put, tmp_path):
    report = convert(put({"a": from_h5(), "b": from_h5()}, keys=["a", "c"]), tmp_path / "s.roi")
    assert report.records == 2 and [(p.key, p.kind) for p in report.problems] == [("c", "missing")]
    report = convert(put({"a": from_h5(), "b": from_h5()}, keys=["a"]), tmp_path / "t.roi")
    assert report.records == 2 and report.exit_code == 0 and "1 keys, the file 2 entries" in report.remarks[0]


def test_a_malicious_pickle_is_refused_by_name(put, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    with pytest.raises(DataError, match=r"entry 'b': .*system"):
        convert(put({"a": from_h5(), "b": from_h5(features=Evil())}), tmp_path / "s.roi")
    with pytest.raises(DataError, match=r"the list `keys`: .*system"):
        convert(put({"a": from_h5()}, keys=Evil()), tmp_path / "s.roi")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "s.roi").exists()


def test_background_as_class_zero(put, tmp_path):
    """As mmf's extraction with --background: ids count from 1, and the distribution begins with background."""
    source = put({"a": from_npy()})
    report = convert(source, tmp_path / "s.roi", feature_dtype="float32", class_offset=-1)
    regions = open_store(tmp_path / "s.roi")["a"]
    assert regions.class_ids.tolist() == [0, -1] and regions.class_scores.tobytes() == CLS_PROB[:, 1:].tobytes()
    assert report.conventions["shift"].startswith("-1") and "first 1 column" in next(iter(report.without_place))
    assert open_store(tmp_path / "s.roi").manifest.fingerprint["class_offset"] == -1


@pytest.mark.parametrize("fmt", ["volta-lmdb", "volta-lmdb-raw"])
@pytest.mark.parametrize("locations", [4, 5, 7])
def test_volta_reads_what_is_written(peer, put_store, full, tmp_path, fmt, locations):
    reader = peer("volta/volta/datasets/_image_features_reader.py")  # needs torch
    records = [full("1007129816", 4), full("COCO_val2014_000000520430", 36)]
    convert(put_store(records), tmp_path / "v.lmdb", destination_format=fmt)
    config = types.SimpleNamespace(v_feature_size=8, num_locs=locations, add_global_imgfeat=None, norm_embeddings=False)
    peer_reader = reader.ImageFeaturesH5Reader(str(tmp_path / "v.lmdb"), config)
    assert len(peer_reader) == 2
    for record in records:
        features, count, location, original = peer_reader[record.key]
        assert count == len(record) and np.array_equal(features, record.features)
        assert np.array_equal(original[:, :4], record.boxes)
        assert np.allclose(location[:, :4], record.boxes / [640, 480, 640, 480], atol=1e-6)


IGLUE_H5_TO_LMDB = """
import lmdb, runpy, sys
script, _, source, _, target = sys.argv[:] = [sys.argv[1], "--h5", sys.argv[2], "--lmdb", sys.argv[3]]
big = lmdb.open  # theirs asks for a terabyte on the disk
lmdb.open = lambda path, **options: big(path, **{**options, "map_size": 1 << 24})
runpy.run_path(script, run_name="__main__")
"""


def test_the_file_that_iglue_makes_of_ours_is_read(peer_file, put_store, full, tmp_path):
    """HDF5 from here, through their own h5_to_lmdb, and back."""
    script = peer_file("volta/features_extraction/h5_to_lmdb.py")  # needs tqdm
    records = [full("1007129816", 4), full("2370799", 3)]
    convert(put_store(records), tmp_path / "f.h5")
    command = [sys.executable, "-c", IGLUE_H5_TO_LMDB, script, tmp_path / "f.h5", tmp_path / "p.lmdb"]
    subprocess.run(command, check=True, capture_output=True)
    report = convert(tmp_path / "p.lmdb", tmp_path / "back.roi", feature_dtype="float32")
    assert report.records == 2 and not report.without_place and not report.left_out
    for record in records:
        found = open_store(tmp_path / "back.roi")[record.key]
        assert all(getattr(found, name).tobytes() == array.tobytes() for name, array in record.arrays().items())
