from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace

import pytest

from cache import CorruptRecord, Failure, StoreDamaged, StoreNotFound, StoreWriter, open_store
from cache.index import Index
from cache.manifest import Manifest
from cache.snapshot import load_index
from cache.verify import digest, verify


@pytest.fixture
def store(tmp_path, make):
    """Three sealed shards, the last one not in index.idx; a replaced record and a failure."""
    path = tmp_path / "s.roi"
    with StoreWriter(path, "float32", {"x": 1}, {"classes": ["a"]}, {"device": "cpu"}) as writer:
        writer.write([make("a"), make("b")], [Failure("f", "empty", "nothing")])
        writer.seal()
        writer.write([make("a", salt=1)], on_duplicate="replace")
    merged = (path / "index.idx").read_bytes()
    with StoreWriter(path, "float32") as writer:
        writer.write([make("c")])
    (path / "index.idx").write_bytes(merged)
    return path


def expected(make) -> dict:
    return {"a": make("a", salt=1), "b": make("b"), "c": make("c")}


def read_everything(path, make, same) -> None:
    """Each read gives what was written, or raises CorruptRecord or StoreDamaged."""
    try:
        opened = open_store(path)
        assert sorted(opened.keys()) == ["a", "b", "c"] and [f.key for f in opened.failures()] == ["f"]
    except (CorruptRecord, StoreDamaged):
        return
    for key, regions in expected(make).items():
        try:
            assert same(opened[key], regions)
        except (CorruptRecord, StoreDamaged):
            pass


def test_a_sound_store(store):
    seen = []
    report = verify(store, ["a", "b", "c"], lambda done, total: seen.append((done, total)))
    assert report.ok and (report.records, report.failures, report.shards, report.extra) == (3, 1, 3, 0)
    assert report.bytes == sum(p.stat().st_size for p in store.glob("*.lmdb"))
    assert seen[-1] == (report.bytes, report.bytes) and len(seen) == 3


def test_ids(store, tmp_path):
    report = verify(store, ["a", "f", "z", "z"])
    assert report.problems == [] and report.missing == ["f", "z"] and report.extra == 2 and not report.ok


@pytest.mark.parametrize("name", ["manifest.json", "index.idx", "shard-00000.idx", "shard-00002.idx"])
def test_every_flipped_byte_of_the_small_files_is_found(store, make, same, name):
    path = store / name
    data = path.read_bytes()
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 1 << position % 8
        path.write_bytes(altered)
        report = verify(store)
        assert not report.ok and any(name in problem for problem in report.problems)
        if position % 5 == 0:
            read_everything(store, make, same)
    path.write_bytes(data)
    assert verify(store).ok


def test_flipped_bytes_of_shards_are_found(store, make, same):
    """All headers, keys and structures around the values, and a sample of all else."""
    shard = Manifest.load(store).shards[0]
    path = store / shard.file
    data = path.read_bytes()
    rng = random.Random(0)
    positions = {page + i for page in range(0, len(data), 4096) for i in range(0, 24, 3)}
    positions |= set(rng.sample(range(len(data)), 150))
    for _, entry in load_index(store, shard).states():
        positions |= set(range(entry.offset, min(entry.offset + 300, entry.offset + entry.length), 7))
    for position in sorted(positions):
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(bytes([data[position] ^ 1 << position % 8]))
        report = verify(store)
        assert not report.ok and str(path) in report.problems[0]
        if position % 3 == 0:
            read_everything(store, make, same)
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(data[position : position + 1])
    assert verify(store).ok


@pytest.mark.parametrize(
    "name", ["manifest.json", "index.idx", "shard-00000.idx", "shard-00000.lmdb", "shard-00002.idx", "shard-00002.lmdb"]
)
def test_cut_and_missing_files_are_found(store, make, same, name):
    path = store / name
    data = path.read_bytes()
    for size in sorted({0, 1, 10, 64, 100, len(data) // 2, len(data) - 4096, len(data) - 1} & set(range(len(data)))):
        path.write_bytes(data[:size])
        report = verify(store)
        assert not report.ok and any(name in problem for problem in report.problems)
        read_everything(store, make, same)
    path.unlink()
    if name == "index.idx":
        assert verify(store).ok
    else:
        assert any(name in problem for problem in verify(store).problems)
    read_everything(store, make, same)


def test_a_damaged_index_is_named_once(store):
    index = store / "shard-00001.idx"
    index.write_bytes(index.read_bytes()[:100])
    (problem,) = verify(store).problems
    assert str(index) in problem and "100 bytes" in problem


def test_the_damaged_record_is_named(store):
    _, offset, length = open_store(store).location("b")
    with open(store / "shard-00000.lmdb", "r+b") as file:
        file.seek(offset + length - 1)
        file.write(b"\x01")
    assert any("'b'" in problem for problem in verify(store).problems)
    assert not any("'a'" in problem or "'c'" in problem for problem in verify(store).problems)


def test_exchanged_files_are_found(store):
    for suffix in ("idx", "lmdb"):
        one, other = store / f"shard-00000.{suffix}", store / f"shard-00001.{suffix}"
        before = one.read_bytes(), other.read_bytes()
        one.write_bytes(before[1]), other.write_bytes(before[0])
        assert not verify(store).ok
        one.write_bytes(before[0]), other.write_bytes(before[1])
    assert verify(store).ok


def test_a_merged_index_that_differs_is_found(store):
    indexes = [load_index(store, shard) for shard in Manifest.load(store).shards[:2]]
    wrong = Index.merge(indexes[:1])
    wrong.covers = Index.merge(indexes).covers
    wrong.save(store / "index.idx")
    assert [p for p in verify(store).problems if "index.idx: it differs" in p]


def test_a_merged_index_of_shards_that_are_gone_is_found(store):
    Manifest.load(store).only({0}).save(store)
    assert [p for p in verify(store).problems if "index.idx: it covers shards" in p]


def test_features_that_do_not_fit_the_manifest_are_found(store):
    replace(Manifest.load(store), dim=9).save(store)
    assert [p for p in verify(store).problems if "float32[8]" in p and "float32[9]" in p]


def test_features_of_an_open_shard_that_do_not_fit_the_manifest_are_found(tmp_path, make):
    path = tmp_path / "s.roi"
    writer = StoreWriter(path, "float32")
    writer.write([make("a")])
    assert verify(path).ok
    replace(Manifest.load(path), dim=9).save(path)
    assert [p for p in verify(path).problems if "shard-00000.lmdb" in p and "float32[8]" in p and "float32[9]" in p]
    writer.__exit__(RuntimeError)


def leave_open(path, make):
    with pytest.raises(RuntimeError), StoreWriter(path, "float32") as writer:
        writer.write([make(f"k{i}", d=300) for i in range(10)], [Failure("f", "empty", "nothing")])
        raise RuntimeError
    return path / "shard-00000.lmdb"


def test_an_open_shard(tmp_path, make):
    path = tmp_path / "o.roi"
    shard = leave_open(path, make)
    report = verify(path, ["k1"])
    assert report.ok and (report.records, report.failures) == (10, 1)
    shard.unlink()
    assert "open shard is missing" in verify(path, ["k1"]).problems[0]


@pytest.mark.parametrize("damage", ["cut", "noise", "record"])
def test_a_damaged_open_shard_is_reported_and_not_fatal(tmp_path, make, damage):
    path = tmp_path / "o.roi"
    shard = leave_open(path, make)
    data = bytearray(shard.read_bytes())
    if damage == "cut":
        data = data[:20_000]
    elif damage == "noise":
        data[8192:] = random.Random(0).randbytes(len(data) - 8192)
    else:
        data[data.rindex(b"RVRC") + 500] ^= 1
    shard.write_bytes(data)
    report = verify(path)
    assert not report.ok and str(shard) in report.problems[0]
    if damage == "record":
        assert (report.records, report.failures, len(report.problems)) == (10, 1, 1) and "corrupt" in report.problems[0]


def test_nothing_to_verify(tmp_path):
    with pytest.raises(StoreNotFound):
        verify(tmp_path / "x.roi")
    with pytest.raises(StoreNotFound):
        verify(tmp_path)


def test_several_stores_and_single_shards(store, tmp_path):
    other = tmp_path / "t.roi"
    shutil.copytree(store, other)
    both, one = verify([store, other]), verify(store)
    assert both.shards == 6 and (both.records, both.failures) == (one.records, one.failures) == (3, 1)
    assert verify(str(tmp_path / "*.roi")).ok
    os.truncate(other / "shard-00001.lmdb", 100)
    assert len(verify([store, other]).problems) == 1
    assert verify(other / "shard-00000.lmdb").ok and not verify(other / "shard-00001.lmdb").ok


def test_the_digest_is_of_what_is_held_and_not_of_how(tmp_path, make):
    def build(name, units, **options):
        with StoreWriter(tmp_path / name, "float32", **options) as writer:
            for unit in units:
                writer.write([make(*unit[:1], salt=unit[1]) if isinstance(unit, tuple) else make(unit)], (), "replace")
                if options:
                    writer.seal()
        return digest(tmp_path / name)

    one = build("1", ["a", "b", "c"])
    assert one == build("2", [("b", 1), "c", "a", "b"], shard_size=1)
    assert one != build("3", ["a", "b"]) and one != build("4", [("a", 1), "b", "c"])
    with StoreWriter(tmp_path / "1", "float32") as writer:
        writer.write([], [Failure("f", "empty", "m")])
        assert digest(tmp_path / "1") == one
        writer.write([make("d")])
        assert digest(tmp_path / "1") != one
    assert len(one) == 32
