from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from cache import (
    DiskError,
    InvalidRegions,
    StoreLocked,
    StoreMismatch,
    StoreWriter,
    UsageError,
    WriteResult,
    environment,
    open_store,
    read_fingerprint,
)
from cache.manifest import Manifest
from cache.verify import verify
from tests.cache.told import failed, keys, states


def test_write_and_read(tmp_path, make, same):
    path = tmp_path / "a.roi"
    with StoreWriter(path, "float32", {"x": 1}, {"classes": ["c"]}, {"device": "cpu"}) as writer:
        assert writer.write([make("a"), make("b", n=0)], [failed("c")]) == WriteResult(2, 0, 1)
        assert writer.write([], []) == WriteResult(0, 0, 0)
        assert writer.states(["a", "c", "d"]) == ["record", failed("c"), None]
        assert writer.source_digest("a") == make("a").source_digest
        assert writer.source_digest("c") is writer.source_digest("d") is None
    store = open_store(path)
    assert same(store["a"], make("a")) and same(store["b"], make("b", n=0)) and list(store.failures()) == [failed("c")]
    manifest = store.manifest
    assert (manifest.dim, manifest.feature_dtype, manifest.fingerprint) == (8, "float32", {"x": 1})
    assert manifest.vocabularies == {"classes": ["c"]} and manifest.shards[0].provenance == ({"device": "cpu"},)
    assert sorted(os.listdir(path)) == ["index.idx", "manifest.json", "shard-00000.idx", "shard-00000.lmdb"]
    assert verify(path).ok


def test_full_shards_are_sealed(tmp_path, make, same):
    path = tmp_path / "a.roi"
    with StoreWriter(path, "float32", shard_size=60_000) as writer:
        for i in range(40):
            writer.write([make(f"{i:03}")], [failed(f"f{i}")])
        assert len(writer.manifest.sealed) > 2 and len(writer.manifest.open) == 1
        assert (path / "index.idx").exists()
    manifest = Manifest.load(path)
    assert not manifest.open and sum(s.records for s in manifest.shards) == 40
    assert [s.number for s in manifest.shards] == list(range(len(manifest.shards)))
    store = open_store(path)
    assert all(same(store[f"{i:03}"], make(f"{i:03}")) for i in range(40)) and len(list(store.failures())) == 40
    assert verify(path).ok


def test_values_that_overflow_become_failures(tmp_path, make):
    path = tmp_path / "a.roi"
    large = make("big").replace(features=np.full((3, 8), 70000, np.float32))
    with StoreWriter(path, "float16") as writer:
        assert writer.write([make("a"), large], [failed("b")]) == WriteResult(1, 0, 2)
        (_, failure) = writer.states(["a", "big"])
        assert failure.kind == "value_range" and "65504" in failure.message
    assert states(path) == {"a": "record", "b": "missing", "big": "value_range"}


@pytest.mark.parametrize("key", ["k" * 511, "\u00e9" * 255, "k"])
def test_keys_that_fit(tmp_path, make, key):
    with StoreWriter(tmp_path / "a.roi") as writer:
        writer.write([make(key)])
        writer.write([], [failed(key[1:] + "x")])
    assert states(tmp_path / "a.roi") == {key: "record", key[1:] + "x": "missing"}


@pytest.mark.parametrize("key, size", [("k" * 512, 512), ("\u00e9" * 256, 512), ("", 0)])
def test_keys_that_do_not_fit(tmp_path, make, key, size):
    with StoreWriter(tmp_path / "a.roi") as writer:
        for batch in ([make("fine"), make(key)], []), ([make("fine")], [failed(key)]):
            with pytest.raises(InvalidRegions, match=f"{size} bytes, allowed are 1 to 511") as error:
                writer.write(*batch)
            assert error.value.kind == "key_invalid"
        assert writer.states([key]) == [None]
    assert keys(tmp_path / "a.roi") == []


def test_keys_are_any_text(tmp_path, make, same):
    odd = ["a b", "\n", "\0", "\u202e", "[bold]x", "\U0001f600", "../..", "a" * 511, "A", "a", "\u00e9", "e\u0301"]
    with StoreWriter(tmp_path / "a.roi", "float32") as writer:
        writer.write([make(key) for key in odd])
    store = open_store(tmp_path / "a.roi")
    assert sorted(store.keys()) == sorted(odd) and all(same(store[key], make(key)) for key in odd)


def test_lone_surrogates_are_refused(tmp_path, make):
    regions = make("a").copy()
    object.__setattr__(regions, "key", "\udcff")
    with StoreWriter(tmp_path / "a.roi") as writer:
        with pytest.raises(InvalidRegions, match="percent-escape"):
            writer.write([regions])
        assert writer.states(["\udcff"]) == [None]


def test_regions_that_were_spoilt_after_they_were_built(tmp_path, make):
    regions = make("a").copy()
    regions.boxes[0, 2] = -1e6
    with StoreWriter(tmp_path / "a.roi") as writer:
        with pytest.raises(InvalidRegions, match="x2 < x1"):
            writer.write([make("b"), regions])
    assert keys(tmp_path / "a.roi") == []


def test_one_dimension_a_store(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        with pytest.raises(StoreMismatch, match="'b'.*dimension 9.*8"):
            writer.write([make("a", d=8), make("b", d=9)])
        writer.write([make("a", d=8)])
    with StoreWriter(path) as writer:
        with pytest.raises(StoreMismatch, match="dimension 9"):
            writer.write([make("b", n=0, d=9)])
    assert keys(path) == ["a"]


def test_fingerprints(tmp_path, make):
    path = tmp_path / "a.roi"
    assert read_fingerprint(path) is None
    mine = {"model": "m", "nms": 0.5, "boxes": None, "swap": True}
    with StoreWriter(path, "float32", {"other": 1}):
        pass  # a store that holds nothing fits every job
    assert read_fingerprint(path) is None
    with StoreWriter(path, "float16", mine, {"classes": ["a", "b"]}) as writer:
        writer.write([make("a")])
    assert read_fingerprint(path) == mine
    with StoreWriter(path) as writer:
        assert writer.manifest.fingerprint == mine
    StoreWriter(path, "float16", dict(reversed(mine.items())), {"classes": ["a", "b"]}).close()
    other = {"model": "n", "nms": 0.5, "boxes": 3, "new": 1}
    with pytest.raises(StoreMismatch) as error:
        StoreWriter(path, "float32", other, {"classes": ["a", "c"]})
    differences = [
        "feature_dtype is 'float16' in the store, 'float32' here",
        "model is 'm' in the store, 'n' here",
        "boxes is None in the store, 3 here",
        "new is '(absent)' in the store, 1 here",
        "swap is True in the store, '(absent)' here",
        "the vocabulary of classes has 2 names in the store, 2 here, and differs at 1: ['b'] in the store, ['c'] here",
    ]
    assert all(part in str(error.value) for part in differences)
    assert "nms" not in str(error.value) and error.value.exit_code == 78
    StoreWriter(path, "float16", mine).close()


def test_provenance_is_recorded_and_never_refused(tmp_path, make):
    path = tmp_path / "a.roi"
    for device in ("cpu", "cuda", "cuda"):
        writer = StoreWriter(path, provenance={"device": device})
        writer.write([make(f"{device}{len(keys(path))}")])
        with pytest.raises(RuntimeError), writer:
            raise RuntimeError
    StoreWriter(path).close()
    assert Manifest.load(path).shards[0].provenance == ({"device": "cpu"}, {"device": "cuda"})


@pytest.mark.parametrize("arguments", [{"feature_dtype": "float64"}, {"shard_size": 0}])
def test_wrong_use(tmp_path, arguments):
    with pytest.raises(UsageError):
        StoreWriter(tmp_path / "a.roi", **arguments)
    assert not (tmp_path / "a.roi").exists()
    with StoreWriter(tmp_path / "a.roi") as writer, pytest.raises(UsageError):
        writer.write([], on_duplicate="ignore")
    for use in (lambda: writer.write([]), lambda: writer.states([]), writer.seal):
        with pytest.raises(UsageError, match="closed"):
            use()
    writer.close()


def test_an_exception_leaves_the_shard_open_for_the_next_writer(tmp_path, make):
    path = tmp_path / "a.roi"
    with pytest.raises(KeyboardInterrupt), StoreWriter(path) as writer:
        writer.write([make("a")])
        raise KeyboardInterrupt
    assert [s.state for s in Manifest.load(path).shards] == ["open"] and keys(path) == ["a"]
    with StoreWriter(path) as writer:
        assert writer.states(["a"]) == ["record"]
        writer.write([make("b")])
    assert [(s.state, s.records) for s in Manifest.load(path).shards] == [("sealed", 2)]


def test_nothing_written_leaves_no_shard(tmp_path, make):
    path = tmp_path / "a.roi"
    StoreWriter(path).close()
    assert os.listdir(path) == ["manifest.json"] and keys(path) == [] and verify(path).ok
    with StoreWriter(path) as writer, pytest.raises(InvalidRegions):
        writer.write([make("a"), make("a")])
    assert os.listdir(path) == ["manifest.json"]


def test_an_empty_open_shard_is_removed(tmp_path, make, monkeypatch):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(environment.Environment, "write", lambda self, fill: (_ for _ in ()).throw(DiskError("full")))
            with pytest.raises(DiskError):
                writer.write([make("a")])
        reader = open_store(path)
        assert len(reader) == 0 and len(Manifest.load(path).open) == 1
    assert os.listdir(path) == ["manifest.json"] and len(reader) == 0 and reader.get("a") is None
    with StoreWriter(path) as writer:
        writer.write([make("a")])
    assert reader["a"].key == "a"


def test_the_second_writer_is_refused(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            StoreWriter(path)
        writer.write([make("a")])
    StoreWriter(path).close()


def test_a_forked_child_cannot_write(tmp_path, make):
    with StoreWriter(tmp_path / "a.roi") as writer:
        writer.write([make("a")])
        pid = os.fork()
        if pid == 0:
            try:
                writer.write([make("b")])
            except UsageError:
                writer.__exit__(UsageError)
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(StoreLocked):
            StoreWriter(tmp_path / "a.roi")
        writer.write([make("c")])
    assert keys(tmp_path / "a.roi") == ["a", "c"]


def test_one_write_larger_than_the_map(tmp_path, make, monkeypatch):
    monkeypatch.setattr(environment, "MAP_SLACK", 1 << 16)
    path = tmp_path / "a.roi"
    reader = None
    with StoreWriter(path, "float32", shard_size=1 << 16) as writer:
        writer.write([make("first")])
        reader = open_store(path)
        first = reader["first"]
        before = first.features.copy()
        writer.write([make(f"k{i}", d=8) for i in range(500)])
        assert np.array_equal(first.features, before) and len(reader) == 501
    assert np.array_equal(first.features, before) and len(open_store(path)) == 501 and verify(path).ok


def test_what_is_no_json_of_its_own_does_not_lock_anybody_out(tmp_path, make):
    path, choices = tmp_path / "a.roi", {"sizes": (600, 1000), "deep": {"a": ((1,),)}}
    for key in "ab":
        words = {"classes": ("c", "d")}
        with StoreWriter(path, fingerprint=choices, vocabularies=words, provenance={"devices": ("cpu",)}) as writer:
            writer.write([make(key)])
            assert writer.manifest == Manifest.load(path)
    writer = StoreWriter(path, fingerprint=choices)
    writer.provenance = {"devices": ("cpu", "cuda")}
    assert writer.provenance == {"devices": ["cpu", "cuda"]}
    with pytest.raises(UsageError, match="provenance cannot be stored"):
        writer.provenance = {"devices": {"cpu"}}
    writer.close()
    for wrong in ("fingerprint", "provenance"):
        with pytest.raises(UsageError, match=f"{wrong} cannot be stored"):
            StoreWriter(tmp_path / "b.roi", **{wrong: {"x": float("nan")}})
    assert not (tmp_path / "b.roi").exists()


def test_a_writer_that_is_lost_leaves_nothing_writable(tmp_path, make):
    path = tmp_path / "a.roi"
    writer = StoreWriter(path)
    writer.write([make("a")])
    reader = open_store(path)
    assert "a" in reader
    (shared,) = environment._SHARED.values()
    del writer
    gc.collect()
    assert not shared._writable and "a" in reader
    del reader
    gc.collect()
    assert not environment._SHARED
    with StoreWriter(path) as writer:
        writer.write([make("b")])
    assert len(open_store(path)) == 2
