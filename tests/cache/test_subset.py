from __future__ import annotations

import os
import shutil

import pytest

from cache import DataError, Failure, StoreMismatch, StoreWriter, UsageError, open_store
from cache.manifest import Manifest
from cache.subset import subset
from cache.verify import digest, verify


@pytest.fixture
def store(tmp_path, make):
    path = tmp_path / "s ü.roi"
    with StoreWriter(path, "float32", {"x": 1}, {"classes": ["a"]}, {"on": "one"}) as writer:
        writer.write([make(f"a/{i}") for i in range(6)], [Failure("f", "empty", "nothing", "/f")])
        writer.seal()
        writer.provenance = {"on": "two"}
        writer.write([make("a/1", salt=1)], on_duplicate="replace")
        writer.write([make("b/1", n=0), make("b/2", extras=False)])
    return path


def held(path) -> tuple[dict[str, bytes], list[Failure]]:
    opened = open_store(path)
    return {key: bytes(opened.record(key)) for key in opened.keys()}, list(opened.failures())


def test_records_are_the_same_bytes(store, tmp_path):
    out = tmp_path / "new" / "o.roi"
    seen = []
    report = subset(store, out, ["b/2", "a/1", "f", "b/2"], on_progress=lambda *progress: seen.append(progress))
    assert (report.made, report.records, report.failures, report.missing, report.damaged) == (True, 2, 1, [], {})
    records, failures = held(store)
    assert held(out) == ({key: records[key] for key in ("a/1", "b/2")}, failures)
    assert list(open_store(out).keys()) == ["b/2", "a/1"] and verify(out).ok and report.exit_code == 0
    manifest = Manifest.load(out)
    assert (manifest.fingerprint, manifest.vocabularies, manifest.dim) == ({"x": 1}, {"classes": ["a"]}, 8)
    assert manifest.shards[0].provenance == ({"on": "two"},) and seen[-1][0] <= seen[-1][1]


def test_all_of_it_without_what_was_replaced(store, tmp_path):
    report = subset(store, tmp_path / "o.roi")
    assert held(tmp_path / "o.roi") == held(store) and digest(tmp_path / "o.roi") == digest(store)
    assert (report.records, report.failures) == (8, 1) and verify(tmp_path / "o.roi").records == 8
    assert sum(shard.records for shard in open_store(store).manifest.shards) == 9


def test_a_pattern(store, tmp_path):
    assert subset(store, tmp_path / "o.roi", pattern="a/*").records == 6
    with pytest.raises(DataError, match="none of the keys"):
        subset(store, tmp_path / "p.roi", pattern="z*")
    assert not (tmp_path / "p.roi").exists()


def test_missing_keys(store, tmp_path):
    report = subset(store, tmp_path / "o.roi", ["z", "a/1", "y"])
    assert (report.made, report.missing, report.exit_code) == (False, ["z", "y"], 65)
    assert os.listdir(tmp_path) == [store.name]
    report = subset(store, tmp_path / "o.roi", ["z", "a/1", "y"], missing="skip")
    assert (report.made, report.missing, report.records, report.exit_code) == (True, ["z", "y"], 1, 0)
    with pytest.raises(DataError):
        subset(store, tmp_path / "p.roi", ["z"], missing="skip")


def test_damaged_records_are_left_out_and_listed(store, tmp_path):
    name, offset, length = open_store(store).location("a/2")
    with open(store / f"{name}.lmdb", "r+b") as file:
        file.seek(offset + length // 2)
        file.write(b"damage")
    records, _ = held_but(store, "a/2")
    report = subset(store, tmp_path / "o.roi")
    assert list(report.damaged) == ["a/2"] and "corrupt" in report.damaged["a/2"] and report.exit_code == 65
    assert (report.records, report.failures) == (7, 1) and held(tmp_path / "o.roi")[0] == records
    assert verify(tmp_path / "o.roi").ok
    with pytest.raises(DataError, match="none of 1 keys can be read"):
        subset(store, tmp_path / "p.roi", ["a/2"])
    (store / "shard-00000.lmdb").unlink()
    report = subset(store, tmp_path / "q.roi")
    assert (report.records, report.failures, len(report.damaged)) == (3, 0, 6) and verify(tmp_path / "q.roi").ok


def held_but(path, damaged):
    opened = open_store(path)
    return {key: bytes(opened.record(key)) for key in opened.keys() if key != damaged}, None


def test_an_open_shard_and_its_writer(tmp_path, make):
    with StoreWriter(tmp_path / "s.roi", "float32") as writer:
        writer.write([make("a"), make("b")], [Failure("f", "empty", "m")])
        assert subset(tmp_path / "s.roi", tmp_path / "o.roi", ["b", "f"]).records == 1
        assert held(tmp_path / "o.roi")[0]["b"] == held(tmp_path / "s.roi")[0]["b"]


def test_several_stores(store, tmp_path, make):
    with StoreWriter(tmp_path / "t.roi", "float32", {"x": 1}) as writer:
        writer.write([make("c"), make("f")])
    assert subset([store, tmp_path / "t.roi"], tmp_path / "o.roi", ["c", "f", "b/1"]).records == 3
    with StoreWriter(tmp_path / "u.roi", "float32", {"x": 2}) as writer:
        writer.write([make("d")])
    with pytest.raises(StoreMismatch, match="x is 1 in"):
        subset([store, tmp_path / "u.roi"], tmp_path / "p.roi")


def test_wrong_use(store, tmp_path):
    for options, message in [
        ({"destination": store}, "lies in"),
        ({"destination": store / "o.roi"}, "lies in"),
        ({"keys": ["a"], "pattern": "*"}, "one of them"),
        ({"missing": "perhaps"}, "error, skip"),
    ]:
        with pytest.raises(UsageError, match=message):
            subset(store, **{"destination": tmp_path / "o.roi", **options})


def test_killed_anywhere_it_can_be_run_again(store, tmp_path, killed_at):
    out, step, before = tmp_path / "o.roi", 1, digest(store)
    while killed_at(step, lambda: subset(store, out)):
        assert verify(store).ok
        if not out.exists():
            subset(store, out)
        assert digest(out) == before
        shutil.rmtree(out)
        shutil.rmtree(tmp_path / "o.roi.partial", ignore_errors=True)
        step += 3
    assert step > 20 and verify(out).ok and digest(store) == before
