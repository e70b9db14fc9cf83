from __future__ import annotations

import gc
import shutil
from pathlib import Path

import numpy as np
import pytest

from cache import Failure, MissingKeys, StoreNotFound, StoreWriter, UsageError, open_store
from cache.record import encode
from cache.verify import digest, verify


@pytest.fixture(params=["sealed", "open", "both"])
def store(request, build):
    units = {"sealed": [["a", "b"], ["c"]], "open": [["a", "b", "c"]], "both": [["a", "b"], ["c"]]}[request.param]
    failures = [Failure("f", "empty", "nothing", "src")]
    return open_store(build("s.roi", *units, open_last=request.param != "sealed", failures=failures))


def test_reading(store, make, same):
    assert same(store["b"], make("b")) and same(store.get("c"), make("c"))
    assert store.get("x") is None and store.get("f", 3) == 3
    assert [r.key for r in store.get_many(["c", "a", "c"])] == ["c", "a", "c"] and store.get_many([]) == []
    assert [r.key for r in store.get_many(["c", "x", "f", "a"], missing="skip")] == ["c", "a"]
    assert "a" in store and "x" not in store and "f" not in store and 3 not in store and "" not in store
    assert len(store) == 3 and sorted(store) == sorted(store.keys()) == ["a", "b", "c"]
    assert list(store.failures()) == [Failure("f", "empty", "nothing", "src")]
    assert bytes(store.record("a")) == encode(make("a"), "float32")
    store.prefetch(["a", "c", "x"])
    assert "3 records" in repr(store)
    with pytest.raises(UsageError):
        store.get_many([], missing="ignore")


def test_missing_keys_are_all_named_and_explained(store):
    with pytest.raises(KeyError) as error:
        store.get_many(["a", "x", "f", "y"])
    assert isinstance(error.value, MissingKeys) and error.value.keys == ["x", "f", "y"]
    with pytest.raises(KeyError, match="'f' failed: empty: nothing"):
        store["f"]
    for use in (store.location, store.record):
        with pytest.raises(MissingKeys, match="s.roi"):
            use("x")


def test_near_keys_are_suggested(build):
    store = open_store(build("s.roi", ["COCO_val2014_000000000042.jpg", "COCO_val2014_000000000139.jpg"]))
    with pytest.raises(KeyError, match="near .*COCO_val2014_000000000042.jpg"):
        store["COCO_val2014_00000042.jpg"]


def test_locations(build):
    path = build("s.roi", ["a"], ["b"], open_last=True)
    store = open_store(path)
    name, offset, length = store.location("a")
    assert (path / f"{name}.lmdb").read_bytes()[offset : offset + length] == bytes(store.record("a"))
    assert store.location("b") == ("shard-00001", None, None)


def test_storage_order(build):
    names = [f"{i * 7919 % 100:02}" for i in range(30)]
    store = open_store(build("s.roi", names[:10], names[10:]))
    places = [(shard, offset) for shard, offset, _ in map(store.location, store.keys())]
    assert places == sorted(places) and len(places) == 30


def test_views_of_sealed_shards_are_read_only_and_outlive_everything(build, make, same):
    path = build("s.roi", ["a"])
    store = open_store(path)
    regions = store["a"]
    assert not regions.features.flags.writeable and not regions.features.flags.owndata
    assert all(array.ctypes.data % 64 == 0 for array in regions.arrays().values())
    del store
    gc.collect()
    shutil.rmtree(path)
    assert same(regions, make("a"))


def test_regions_of_an_open_shard_outlive_seal_and_growth(tmp_path, make, same):
    path = tmp_path / "s.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a")])
        store = open_store(path)
        regions = store["a"]
        writer.write([make(f"{i}") for i in range(200)])
        assert same(regions, make("a")) and len(store) == 201
        writer.seal()
        assert same(store["a"], regions) and len(store) == 201
        writer.write([make("late")])
        assert same(store["late"], make("late"))
    assert same(regions, make("a")) and "late" in store and len(list(store.keys())) == 202


def test_a_snapshot_is_renewed_by_a_miss_and_by_refresh(build, tmp_path, make):
    path = build("s.roi", ["a"])
    store = open_store(path)
    assert store.refresh() is False
    with StoreWriter(path, "float32") as writer:
        writer.write([make("b")])
    assert len(store.manifest.shards) == 1
    assert len(store) == 1
    assert store["b"].key == "b"
    assert len(store) == 2 and len(store.manifest.shards) == 2
    with StoreWriter(path, "float32") as writer:
        writer.write([make("c")])
    assert store.refresh() is True and len(store) == 3


def test_some_shards_of_a_store(build):
    path = build("s.roi", ["a"], ["b"], ["c"])
    store = open_store([path / "shard-00000.lmdb", path / "shard-00002.lmdb"])
    assert sorted(store.keys()) == ["a", "c"] and "b" not in store and store.paths == [path]
    assert sorted(open_store(str(path / "shard-0000[12].lmdb")).keys()) == ["b", "c"]
    assert len(open_store([path / "shard-00000.lmdb", path])) == 3
    other = build("t.roi", ["d"])
    parts = open_store([path / "shard-00002.lmdb", path / "shard-00000.lmdb", other], verify="always").apart()
    assert [sorted(part.keys()) for part in parts] == [["a", "c"], ["d"]] and parts[0].verify == "always"


@pytest.mark.parametrize("target, error", [
    ("nowhere.roi", StoreNotFound), ("*.nothing", StoreNotFound), ([], UsageError), ("grpc:///a", UsageError),
    ("unheard-of://x/a.roi", UsageError), ("", StoreNotFound), (".", StoreNotFound),
    ("shard-00000.lmdb", StoreNotFound),
])  # fmt: skip
def test_targets_that_are_no_stores(tmp_path, monkeypatch, target, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shard-00000.lmdb").write_bytes(b"") if "shard" in str(target) else None
    with pytest.raises(error):
        open_store(target)


@pytest.mark.parametrize("options", [{"verify": "yes"}, {"token": "t"}, {"tls_ca": "f"}])
def test_wrong_options(build, options):
    with pytest.raises(UsageError):
        open_store(build("s.roi", ["a"]), **options)


@pytest.mark.parametrize("ask, said", [
    (lambda s: s[1], "1 is int"), (lambda s: s.get(None), "None is NoneType"), (lambda s: s[b"a"], "b'a' is bytes"),
    (lambda s: s.get_many("abc"), "keys='abc'"), (lambda s: s.get_many(["a", 2]), "2 is int"),
    (lambda s: s.places("abc"), "keys='abc'"), (lambda s: s.prefetch(3), "keys=3"),
    (lambda s: s.location(4), "4 is int"),
])  # fmt: skip
def test_what_is_no_key(build, ask, said):
    store = open_store(build("s.roi", ["a", "b", "c"]))
    with pytest.raises(UsageError, match=said):
        ask(store)
    assert 1 not in store and [r.key for r in store.get_many(key for key in "ca")] == ["c", "a"]


# -- damage


def test_arrays_equal_what_was_written_in_every_dtype(tmp_path, make):
    for dtype in ("float16", "bfloat16", "float32"):
        regions = make("a", n=5, d=33)
        with StoreWriter(tmp_path / dtype, dtype) as writer:
            writer.write([regions])
        stored = open_store(tmp_path / dtype)["a"]
        assert np.array_equal(stored.features, regions.features.astype(stored.features.dtype))
        assert np.array_equal(stored.boxes, regions.boxes) and stored.features.dtype == dtype


# -- compatibility

FORMAT_1 = Path(__file__).resolve().parents[1] / "data" / "cache" / "format-1.roi"


def test_a_store_of_format_1_is_read_and_continued_for_ever(tmp_path, make):
    """It was written when the format was made; it is never written again."""
    assert verify(FORMAT_1).ok and digest(FORMAT_1) == "3bd7b26296fe818e3b62e36d51a22206"
    store = open_store(FORMAT_1)
    assert sorted(store.keys()) == ["a/1.jpg", "late", "none", "\u00e9\n"]
    assert list(store.failures()) == [Failure("gone", "missing", "no file", "/x/gone.jpg")]
    regions = store["a/1.jpg"]
    assert (regions.width, regions.height, regions.source_digest) == (640, 480, bytes(range(16)))
    assert regions.boxes.tolist() == [[0, 1, 2, 4], [4, 5, 6, 8]] and regions.features.dtype == np.float16
    assert regions.features.tolist() == [[1, 1.125, 1.25, 1.375], [1.5, 1.625, 1.75, 1.875]]
    assert regions.scores.tolist() == [1, 0.5] and regions.class_ids.tolist() == [0, 1]
    assert regions.attr_ids.tolist() == [1, 2] and regions.attr_probs.tolist() == [0.25] * 2
    assert regions.class_scores.tolist() == [[0.5] * 2] * 2 and regions.global_features.tolist() == [2.5] * 3
    assert len(store["none"]) == 0 and store["late"].class_probs.tolist() == [0.5]
    assert store.manifest.fingerprint == {"model": "m", "nms": 0.5, "boxes": None} and store.manifest.dim == 4
    assert store.manifest.vocabularies["classes"] == ["cat", "dog", "\u00e9"]
    shutil.copytree(FORMAT_1, tmp_path / "s.roi")
    with StoreWriter(tmp_path / "s.roi", "float16", store.manifest.fingerprint) as writer:
        writer.write([make("gone", d=4)], on_duplicate="drop")
    assert "gone" in open_store(tmp_path / "s.roi") and verify(tmp_path / "s.roi").ok
