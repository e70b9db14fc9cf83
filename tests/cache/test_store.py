from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import xxhash

from cache import (
    CorruptRecord,
    Failure,
    MissingKeys,
    StoreDamaged,
    StoreNotFound,
    StoreWriter,
    UsageError,
    open_store,
)
from cache import store as module
from cache.environment import Environment
from cache.index import FILE as index_file
from cache.manifest import Manifest
from cache.record import encode
from cache.snapshot import load_index
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


def test_readers_beside_a_writer_in_another_process(tmp_path, make, same):
    path = tmp_path / "s.roi"
    StoreWriter(path, "float32").close()
    store = open_store(path)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        with StoreWriter(path, "float32", shard_size=30_000) as writer:
            for i in range(60):
                writer.write([make(f"{i}")])
                os.write(into, b"%d\n" % i)
        os._exit(0)
    os.close(into)
    with open(out) as lines:
        for line in lines:
            key = line.strip()
            assert same(store[key], make(key)) and "0" in store and len(store) > int(key)
    assert os.waitpid(child, 0)[1] == 0
    store.refresh()
    assert len(store) == 60 and not store.manifest.open


# -- processes and threads


def read_all(store, keys):
    return {key: store[key].features.tobytes() for key in keys}


@pytest.mark.parametrize("open_last", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(build, repo_root, method, open_last, monkeypatch):
    path = build("s.roi", ["a", "b"], ["c"], open_last=open_last)
    store = open_store(path)
    expected = read_all(store, "abc")
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    if method == "fork":  # inherits the store object itself
        with multiprocessing.get_context("fork").Pool(3, initializer=_inherit, initargs=(store,)) as pool:
            assert pool.map(_read_inherited, ["abc"] * 12) == [expected] * 12
    else:
        code = "import pickle, sys; store = pickle.load(sys.stdin.buffer)\n"
        code += "sys.stdout.buffer.write(pickle.dumps({k: store[k].features.tobytes() for k in 'abc'}))"
        run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(store), capture_output=True, check=True)
        assert pickle.loads(run.stdout) == expected
    assert read_all(store, "abc") == expected


_inherited = None


def _inherit(store):
    global _inherited
    _inherited = store


def _read_inherited(keys):
    return read_all(_inherited, keys)


def test_pickled_in_another_directory(build, tmp_path, monkeypatch):
    build("s.roi", ["a"])
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(open_store("s.roi"))
    regions = pickle.dumps(open_store("s.roi")["a"])
    monkeypatch.chdir("/")
    assert pickle.loads(data)["a"].key == "a" and pickle.loads(regions).key == "a"


def test_threads(build):
    store = open_store(build("s.roi", list("abcdef"), list("ghij"), open_last=True))
    expected, wrong = read_all(store, "abcdefghij"), []

    def work():
        for _ in range(30):
            if read_all(store, "abcdefghij") != expected or len(store) != 10:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_a_read_only_directory(build, tmp_path):
    path = build("s.roi", ["a"], ["b"], open_last=True)
    for lock in path.glob("*-lock"):
        lock.unlink()
    target = tmp_path / "mounted"
    target.mkdir()
    if subprocess.run(["mount", "--bind", str(path), str(target)], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        store = open_store(target)
        assert sorted(store.keys()) == ["a", "b"] and store["b"].key == "b" and store["a"].key == "a"
        assert sorted(p.name for p in target.iterdir()) == sorted(p.name for p in path.iterdir())
        del store
        gc.collect()
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


@pytest.mark.parametrize("open_last", [False, True])
def test_a_store_that_is_moved_under_a_reader(build, tmp_path, make, same, open_last):
    path, moved = build("s.roi", ["a"], ["b"], open_last=open_last), tmp_path / "a new name.roi"
    old = open_store(path)
    assert old["a"].key == "a" and old["b"].key == "b"
    path.rename(moved)
    if not open_last:
        assert old["a"].key == "a"  # what is mapped stays
    with pytest.raises(StoreNotFound, match=str(path)):
        old.get("c")
    store = open_store(moved)
    assert all(same(store[key], make(key)) for key in "ab")
    with StoreWriter(moved, "float32") as writer:
        writer.write([make("c")])
    assert sorted(open_store(str(tmp_path / "a new*")).keys()) == ["a", "b", "c"]


# -- readers beside a writer of the same process, which seals what they read


@pytest.mark.parametrize("use", [
    lambda store: list(store.keys()), lambda store: list(store.failures()), len, lambda store: store.get("zzz"),
    lambda store: pytest.raises(MissingKeys, store.__getitem__, "zzz"), lambda store: "a" in store,
    lambda store: str(pytest.raises(MissingKeys, store.location, "zzz").value),
])  # fmt: skip
def test_a_shard_that_is_sealed_under_a_reader(tmp_path, make, monkeypatch, use):
    """The writer seals at every moment that a reader may be at."""
    writer = StoreWriter(tmp_path / "s.roi", "float32")
    writer.write([make("a")], [Failure("f", "empty", "m")])
    store, read, reads, seal_at = open_store(tmp_path / "s.roi"), Environment.read, count(), -1

    def seal_before(self):
        if next(reads) == seal_at:
            writer.seal()
        return read(self)

    monkeypatch.setattr(Environment, "read", seal_before)
    for step in range(6):
        writer.write([make(f"b{step}")])
        store.refresh()
        reads, seal_at = count(), step
        use(store)
        seal_at = -1
    assert "b5" in store
    writer.close()


def test_threads_beside_a_writer(tmp_path, make):
    path, stop, errors = tmp_path / "s.roi", threading.Event(), []
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a")], [Failure("f", "empty", "m")])
        store = open_store(path)

        def work(look):
            try:
                while not stop.is_set():
                    look()
            except Exception as error:
                errors.append(error)

        looks = (
            lambda: list(store.keys()),
            lambda: list(store.failures()),
            lambda: str(pytest.raises(MissingKeys, store.__getitem__, "zzz").value),
        )
        threads = [threading.Thread(target=work, args=(look,)) for look in looks]
        [thread.start() for thread in threads]
        for i in range(25):
            writer.write([make(f"{i}")])
            writer.seal()
        stop.set()
        [thread.join() for thread in threads]
    assert not errors and len(open_store(path)) == 26


def test_a_shard_that_is_sealed_while_keys_are_listed(tmp_path, make):
    writers = [StoreWriter(tmp_path / name, "float32") for name in ("1.roi", "2.roi")]
    for writer, keys in zip(writers, ("ab", "cd"), strict=True):
        writer.write([make(key) for key in keys])
    keys = open_store([writer.path for writer in writers]).keys()
    first = next(keys)
    for writer in reversed(writers):
        writer.seal()
    assert sorted([first, *keys]) == ["a", "b", "c", "d"]
    [writer.close() for writer in writers]


# -- targets


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
    ("nowhere.roi", StoreNotFound), ("*.nothing", StoreNotFound), ([], UsageError), ("grpc://host:1", UsageError),
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


def flip(path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))


def test_checksums_the_first_time_always_or_never(build):
    path = build("s.roi", ["a", "b"])
    stores = {verify: open_store(path, verify=verify) for verify in module.VERIFY}
    name, offset, length = stores["first"].location("a")
    assert stores["first"]["a"].key == "a"
    flip(path / f"{name}.lmdb", offset + length - 1)
    assert stores["first"]["a"].key == stores["never"]["a"].key == "a"
    with pytest.raises(CorruptRecord, match="'a'.*checksum"):
        stores["always"]["a"]
    assert stores["always"]["b"].key == "b"
    del stores
    gc.collect()
    with pytest.raises(CorruptRecord):
        open_store(path)["a"]


def test_a_failure_whose_bytes_were_altered(build):
    path = build("s.roi", ["a"], failures=[Failure("f", "empty", "MARKER")])
    data = (path / "shard-00000.lmdb").read_bytes()
    for offset in (i for i in range(len(data)) if data.startswith(b"MARKER", i)):
        flip(path / "shard-00000.lmdb", offset)
    with pytest.raises(CorruptRecord, match="'f'"):
        list(open_store(path).failures())


@pytest.mark.parametrize("name", ["manifest.json", "index.idx", "shard-00000.idx", "shard-00000.lmdb"])
@pytest.mark.parametrize("how", ["cut", "gone", "longer"])
def test_files_that_are_cut_or_gone(build, name, how):
    path = build("s.roi", ["a"])
    if name == "shard-00000.idx":
        (path / "index.idx").unlink()
    file = path / name
    if how == "gone":
        file.unlink()
    elif how == "cut":
        os.truncate(file, file.stat().st_size - 1)
    else:
        with open(file, "ab") as end:
            end.write(b"\0")
    if (name, how) == ("index.idx", "gone"):
        assert open_store(path)["a"].key == "a"  # it holds nothing that the shards do not
        return
    with pytest.raises(StoreDamaged, match=f"{file}.*roivault verify"):
        open_store(path)["a"]


@pytest.mark.parametrize("column, value", [
    ("offset", 1 << 40), ("offset", (1 << 64) - 1), ("length", 1 << 31), ("shard", 7),
])  # fmt: skip
@pytest.mark.parametrize("merged", [True, False])
def test_an_index_that_points_behind_the_end(build, column, value, merged):
    """Its checksum, and that in the manifest, are right: somebody has made it."""
    path = build("s.roi", ["a", "b"], failures=[Failure("f", "empty", "m")])
    manifest = Manifest.load(path)
    index = load_index(path, manifest.shards[0])
    index.columns[column] = np.full_like(index.columns[column], value)
    index.covers = {}
    checksum = index.save(path / manifest.shards[0].index_file)
    manifest.with_shard(replace(manifest.shards[0], index_checksum=f"{checksum:016x}")).save(path)
    (path / "index.idx").unlink()
    if merged:
        index.covers = {0: checksum}
        index.save(path / "index.idx")
    store = open_store(path)
    for use in (
        lambda: store["a"], lambda: store.get("a"), lambda: store.get_many(["a", "b"], read="pread"),
        lambda: store.record("b"), lambda: store.prefetch(["a"]), lambda: store.places(["a"]), lambda: "a" in store,
        lambda: store.location("a"), lambda: list(store.failures()), lambda: store["f"],
    ):  # fmt: skip
        with pytest.raises(StoreDamaged, match="s.roi.*behind the end"):
            use()
    assert not verify(path).ok


@pytest.mark.parametrize("merged", [True, False])
def test_crafted_indexes_raise_named_errors_and_nothing_else(build, merged):
    """Bytes at random, with all checksums made to fit."""
    path = build("s.roi", ["a\u00e9", "b", "c"], ["d"], failures=[Failure("f", "empty", "m")])
    name = index_file if merged else "shard-00000.idx"
    good, manifest, rng = (path / name).read_bytes(), Manifest.load(path), random.Random(0)
    keys, refused = ["a\u00e9", *"bcdfg"], 0
    if not merged:
        (path / index_file).unlink()
    for _ in range(80):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 9])):
            data[rng.randrange(64, len(data))] = rng.choice([0, 255, rng.randrange(256)])
        header = bytearray(data[:64])
        header[32:40] = bytes(8)
        checksum = xxhash.xxh3_64_intdigest(header + data[64:])
        data[32:40] = checksum.to_bytes(8, "little")
        (path / name).write_bytes(data)
        if not merged:
            first = replace(manifest.shards[0], index_checksum=f"{checksum:016x}")
            replace(manifest, shards=(first, *manifest.shards[1:])).save(path)
        try:
            store = open_store(path)
            for ask in (len, list, lambda s: list(s.failures()), lambda s: s.places(keys), lambda s: s.get_many(keys)):
                with contextlib.suppress(MissingKeys, CorruptRecord):
                    ask(store)
        except StoreDamaged as error:
            assert str(path) in str(error)
            refused += 1
    assert 0 < refused < 80


def test_an_open_shard_that_was_cut(build):
    path = build("s.roi", [f"{i}" for i in range(20)], open_last=True)
    os.truncate(path / "shard-00000.lmdb", 30_000)
    store = open_store(path)
    for use in (lambda: store["1"], lambda: len(store)):
        with pytest.raises(StoreDamaged, match="was cut"):
            use()


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
