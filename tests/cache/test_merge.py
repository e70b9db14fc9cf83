from __future__ import annotations

import os
import shutil

import pytest

from cache import (
    DataError,
    DiskError,
    Failure,
    StoreDamaged,
    StoreLocked,
    StoreMismatch,
    StoreWriter,
    UsageError,
    open_store,
)
from cache.manifest import Manifest
from cache.merge import merge
from cache.verify import digest, verify

CHOICES = {"fingerprint": {"model": "m"}, "vocabularies": {"classes": ["a", "b"]}}


def failed(key: str, kind: str = "missing") -> Failure:
    return Failure(key, kind, "m")


@pytest.fixture
def build(tmp_path, make):
    """A store of batches, each a shard: (keys or (key, salt), failed keys, on_duplicate)."""

    def build(name, *batches, **options):
        path = tmp_path / name
        with StoreWriter(path, "float32", **{**CHOICES, "provenance": {"on": name}, **options}) as writer:
            for records, failures, *mode in batches:
                pairs = [(key, 0) if isinstance(key, str) else key for key in records]
                writer.write([make(key, salt=salt) for key, salt in pairs], [failed(key) for key in failures], *mode)
                writer.seal()
        return path

    return build


def states(path) -> dict[str, str]:
    store = open_store(path)
    return {key: "record" for key in store.keys()} | {f.key: f.kind for f in store.failures()}


@pytest.mark.parametrize("copy", [False, True])
def test_shards_are_concatenated(build, tmp_path, make, same, copy):
    a = build("a.roi", (["a1", "a2"], ["f"]), (["a3"], []))
    b, out = build("b ü.roi", (["b1"], [])), tmp_path / "new folder" / "o.roi"
    before = {path: digest(path) for path in (a, b)}
    seen = []
    report = merge([a, b], out, copy, lambda *progress: seen.append(progress))
    assert (report.records, report.failures, report.shards, report.linked) == (4, 1, 3, 0 if copy else 3)
    assert [(s["shards"], s["records"], s["failures"]) for s in report.sources] == [(2, 3, 1), (1, 1, 0)]
    manifest = Manifest.load(out)
    assert [shard.number for shard in manifest.shards] == [0, 1, 2]
    assert [shard.provenance for shard in manifest.shards] == [({"on": "a.roi"},)] * 2 + [({"on": "b ü.roi"},)]
    assert (manifest.fingerprint, manifest.vocabularies, manifest.dim) == ({"model": "m"}, {"classes": ["a", "b"]}, 8)
    assert (out / "shard-00002.lmdb").read_bytes() == (b / "shard-00000.lmdb").read_bytes()
    assert (out / "shard-00002.lmdb").samefile(b / "shard-00000.lmdb") is not copy
    store = open_store(out)
    assert all(same(store[key], make(key)) for key in ("a1", "a2", "a3", "b1")) and len(store) == 4
    assert verify(out).ok and (out / "index.idx").exists() and before == {path: digest(path) for path in (a, b)}
    assert seen[-1][0] == seen[-1][1] == sum(shard.bytes for shard in manifest.shards)
    shutil.rmtree(a)
    assert verify(out).ok
    with StoreWriter(out, "float32", {"model": "m"}) as writer:
        writer.write([make("more")])
    assert verify(out).ok and states(out) == dict.fromkeys(["a1", "a2", "a3", "b1", "more"], "record") | {
        "f": "missing"
    }


def test_counts_add_up_when_stores_overlap(build, tmp_path, make, same):
    a = build("a.roi", (["both", "only a", "recovered"], ["f", "g"]))
    b = build("b.roi", (["both", "g"], ["recovered", "f"]))
    report = merge([a, b], tmp_path / "o.roi")
    assert states(tmp_path / "o.roi") == {
        **dict.fromkeys(["both", "only a", "recovered", "g"], "record"),
        "f": "missing",
    }
    assert (report.records, report.failures, report.duplicates, report.overruled) == (4, 1, 1, 3)
    assert sum(s["records"] for s in report.sources) == report.records + report.duplicates
    assert sum(s["failures"] for s in report.sources) == report.failures + report.overruled
    assert verify(tmp_path / "o.roi").ok and digest(tmp_path / "o.roi") == digest([a, b])


def test_replaced_states_stay_replaced(build, tmp_path, make, same):
    a = build("a.roi", (["x", "gone"], []), ([("x", 1)], [], "replace"), ([], ["gone"], "replace"))
    b = build("b.roi", ([("x", 1)], []))
    for number, order in enumerate([[a, b], [b, a]]):
        out = tmp_path / f"{number}.roi"
        assert merge(order, out).duplicates == 1
        assert states(out) == {"x": "record", "gone": "missing"} and same(open_store(out)["x"], make("x", salt=1))
        (out / "index.idx").unlink()
        assert states(out) == {"x": "record", "gone": "missing"} and verify(out).ok


def test_a_record_wins_over_a_failure_that_was_written_to_replace(build, tmp_path, make, same):
    a = build("a.roi", (["x", "y"], []))
    b = build("b.roi", (["x"], []), ([], ["x"], "replace"))
    for number, order in enumerate([[a, b], [b, a]]):
        out = tmp_path / f"{number}.roi"
        report = merge(order, out)
        assert states(out) == {"x": "record", "y": "record"} and same(open_store(out)["x"], make("x"))
        assert (report.records, report.failures, report.overruled) == (2, 0, 1)
        assert report.shards == len(Manifest.load(out).shards) and verify(out).ok


def test_different_records_of_a_key_are_refused(build, tmp_path):
    a, b = build("a.roi", (["x", "y", "z"], [])), build("b.roi", ([("x", 1), "y", ("z", 1)], []))
    with pytest.raises(StoreMismatch, match="2 keys have different records") as error:
        merge([a, b], tmp_path / "o.roi")
    assert "'x' in" in str(error.value) and str(a) in str(error.value) and str(b) in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["a.roi", "b.roi"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fingerprint": {"model": "n", "new": 1}}, "model is 'm' in .*a.roi, 'n' in .*b.roi; new is '.absent.'"),
        ({"fingerprint": None}, "model is 'm' in .*a.roi, '.absent.' in"),
        ({"vocabularies": {"classes": ["a", "c"]}}, "vocabulary of classes .* differs at 1"),
    ],
)
def test_stores_that_do_not_fit_are_refused(build, tmp_path, options, message):
    a, b = build("a.roi", (["x"], [])), build("b.roi", (["y"], []), **options)
    with pytest.raises(StoreMismatch, match=message):
        merge([a, b], tmp_path / "o.roi")


def test_another_dtype_or_dimension_is_refused(build, tmp_path, make):
    a = build("a.roi", (["x"], []))
    with StoreWriter(tmp_path / "b.roi", "float16", **CHOICES) as writer:
        writer.write([make("y", d=9)])
    with pytest.raises(StoreMismatch, match="feature_dtype is 'float32' in .*; dim is 8 in .*, 9 in"):
        merge([a, tmp_path / "b.roi"], tmp_path / "o.roi")


def test_a_store_that_holds_nothing_fits_all(build, tmp_path):
    a = build("a.roi", (["x"], []))
    StoreWriter(tmp_path / "empty.roi", "float16", {"model": "other"}).close()
    assert merge([tmp_path / "empty.roi", a], tmp_path / "o.roi").records == 1 and verify(tmp_path / "o.roi").ok
    with pytest.raises(DataError, match="nothing"):
        merge([tmp_path / "empty.roi"], tmp_path / "p.roi")


def test_wrong_places(build, tmp_path):
    a, b = build("a.roi", (["x"], [])), build("b.roi", (["y"], []))
    (tmp_path / "link.roi").symlink_to(a)
    for targets, out, message in [
        ([a, a], "o", "a.roi was given twice"),
        ([a, tmp_path / "link.roi"], "o", "was given twice"),
        ([a, b], "a.roi", "lies in"),
        ([a, b], "a.roi/deep/o.roi", "lies in"),
        ([a, b], "link.roi/o.roi", "lies in"),
        (["file:///x.roi"], "o", "not on a disk of this machine"),
    ]:
        with pytest.raises(UsageError, match=message):
            merge(targets, tmp_path / out)
    merge([a, b], tmp_path / "o")
    with pytest.raises(UsageError, match="there already"):
        merge([a, b], tmp_path / "o")
    assert merge(str(tmp_path / "[ab].roi"), tmp_path / "p").records == 2
    assert merge([a / "shard-00000.lmdb", b], tmp_path / "q").records == 2


def test_open_shards_are_refused_and_the_writer_is_named(build, tmp_path, make):
    a = build("a.roi", (["x"], []))
    writer = StoreWriter(tmp_path / "b.roi", "float32", **CHOICES)
    writer.write([make("y")])
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        merge([a, tmp_path / "b.roi"], tmp_path / "o.roi")
    writer.__exit__(RuntimeError)
    with pytest.raises(DataError, match="roivault repair .*b.roi"):
        merge([a, tmp_path / "b.roi"], tmp_path / "o.roi")
    StoreWriter(tmp_path / "b.roi", "float32").close()
    assert merge([a, tmp_path / "b.roi"], tmp_path / "o.roi").records == 2


@pytest.mark.parametrize("copy", [False, True])
def test_damage_is_not_passed_on(build, tmp_path, copy):
    a, b = build("a.roi", (["x"], [])), build("b.roi", (["y"], []))
    with open(b / "shard-00000.lmdb", "r+b") as file:
        file.seek(20_000)
        file.write(b"damage")
    with pytest.raises(StoreDamaged, match="shard-00000.lmdb.*roivault repair"):
        merge([a, b], tmp_path / "o.roi", copy)
    (b / "shard-00000.lmdb").unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        merge([a, b], tmp_path / "o.roi", copy)
    assert sorted(os.listdir(tmp_path)) == ["a.roi", "b.roi"]


def test_copies_where_there_are_no_links(build, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "no links here")

    a, b = build("a.roi", (["x"], [])), build("b.roi", (["y"], []))
    monkeypatch.setattr(os, "link", refuse)
    assert merge([a, b], tmp_path / "o.roi").linked == 0 and verify(tmp_path / "o.roi").ok


def test_a_disk_that_is_too_small_is_told_before(build, tmp_path, monkeypatch):
    a = build("a.roi", (["x"], []))
    free = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([*free[:4], 1, *free[5:]]))
    with pytest.raises(DiskError, match="nothing was written"):
        merge([a], tmp_path / "o.roi", copy=True)
    assert os.listdir(tmp_path) == ["a.roi"]


@pytest.mark.parametrize(
    "copy, stride", [(False, 4), *(pytest.param(copy, 1, marks=pytest.mark.slow) for copy in (False, True))]
)
def test_killed_anywhere_it_can_be_run_again(build, tmp_path, killed_at, copy, stride):
    a = build("a.roi", (["x", "y"], []), ([("y", 1)], [], "replace"))
    b = build("b.roi", (["x", "z"], []), ([], ["x"], "replace"))
    out, step = tmp_path / "o.roi", 1
    before = {path: digest(path) for path in (a, b)}
    while killed_at(step, lambda: merge([a, b], out, copy)):
        assert all(verify(path).ok for path in (a, b)) and before == {path: digest(path) for path in (a, b)}
        if not out.exists():
            merge([a, b], out, copy)
        assert verify(out).ok and states(out) == dict.fromkeys("xyz", "record")
        assert sorted(p.name for p in tmp_path.iterdir() if p.name != "o.roi.partial") == ["a.roi", "b.roi", "o.roi"]
        shutil.rmtree(out)
        shutil.rmtree(tmp_path / "o.roi.partial", ignore_errors=True)
        step += stride
    assert step > 20 and verify(out).ok


def test_interrupted_it_leaves_nothing(build, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    a = build("a.roi", (["x"], []))
    with pytest.raises(KeyboardInterrupt):
        merge([a], tmp_path / "o.roi", on_progress=interrupt)
    assert os.listdir(tmp_path) == ["a.roi"]
