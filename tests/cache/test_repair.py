from __future__ import annotations

import errno
import os
import random
import shutil
from dataclasses import replace

import pytest

from cache import DiskError, StoreDamaged, StoreLocked, StoreMismatch, StoreNotFound, StoreWriter, UsageError
from cache.manifest import Manifest
from cache.repair import repair
from cache.snapshot import load_index
from cache.verify import verify
from tests.cache.repairs import WORDS, damage, hurt_record, leave_open_shard, make_store, mended, states


@pytest.fixture
def store(tmp_path, make):
    return make_store(tmp_path, make)


@pytest.fixture
def open_shard(store, make):
    return leave_open_shard(store, make)


def test_nothing_to_do(store):
    mended(store, [], states(store))
    assert repair(store).actions == [] and not list(store.glob("*.damaged"))


@pytest.mark.parametrize("name", ["index.idx", "shard-00000.idx", "shard-00001.idx"])
@pytest.mark.parametrize("what", ["gone", "cut", "altered", "another", "folder"])
def test_indexes(store, name, what):
    before, file, sound = states(store), store / name, (store / name).read_bytes()
    if what == "another":
        shutil.copyfile(store / "shard-00002.idx", file)
    elif what == "altered":
        damage(file, 70)
    else:
        file.unlink()
        if what == "folder":
            file.mkdir()
        elif what == "cut":
            file.write_bytes(sound[:-1])
    report = mended(store, [], before)
    assert any(action.startswith(name) or name in action for action in report.actions) or what == "gone"
    if name != "index.idx":
        assert file.read_bytes() == sound


def test_a_record_that_is_corrupt(store, make):
    before = states(store)
    sound = (store / "shard-00000.lmdb").read_bytes()
    hurt_record(store, "b")
    hurt = (store / "shard-00000.lmdb").read_bytes()
    report = mended(store, ["b"], before)
    assert report.aside == ["shard-00000.lmdb.damaged"] and sound != hurt
    assert (store / "shard-00000.lmdb.damaged").read_bytes() == hurt
    assert Manifest.load(store).shards[0].provenance == ({"device": "cpu"},)
    with StoreWriter(store, "float32", {"x": 1}, WORDS) as writer:
        assert writer.states(["a", "b"]) == ["record", None]
        writer.write([make("b")])
    assert states(store) == before and verify(store).ok and (store / "shard-00000.lmdb.damaged").exists()


def test_damage_that_a_later_record_replaced(store, make):
    """What `--refresh-changed` has mended costs nothing any more."""
    hurt_record(store, "b")
    with StoreWriter(store, "float32") as writer:
        writer.write([make("b")], on_duplicate="replace")
    before = states(store)
    assert not verify(store).ok
    report = mended(store, [], before)
    assert report.exit_code == 0 and any("shard-00000" in action for action in report.actions)


def test_an_older_state_does_not_come_back(store):
    before = states(store)
    hurt_record(store, "a")  # the newer one
    report = mended(store, ["a"], before)
    assert len(Manifest.load(store).shards) == 2 and len(report.aside) == 2


def test_the_same_record_in_another_shard_saves_it(tmp_path, make):
    from cache.merge import merge

    for name in "ab":
        with StoreWriter(tmp_path / name, "float32") as writer:
            writer.write([make("x"), make(name)])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m", copy=True)
    before = states(tmp_path / "m")
    hurt_record(tmp_path / "m", "x")
    mended(tmp_path / "m", [], before)


@pytest.mark.parametrize("number, lost", [(0, ["b", "c", "f"]), (1, ["a"]), (2, ["d", "e", "g"])])
def test_a_shard_that_is_missing(store, number, lost):
    before = states(store)
    (store / f"shard-0000{number}.lmdb").unlink()
    report = mended(store, lost, before)
    assert any("missing" in action for action in report.actions)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_shard_that_is_missing_with_its_index(store, with_index):
    before = states(store)
    (store / "shard-00002.lmdb").unlink(), (store / "shard-00002.idx").unlink()
    if with_index:
        mended(store, ["d", "e", "g"], before)
    else:
        (store / "index.idx").unlink()
        report = repair(store)
        assert (report.lost, report.unnamed, report.exit_code) == ([], 3, 65) and verify(store).ok
        assert states(store) == {key: before[key] for key in "abcf"}


def test_a_shard_that_was_cut(store):
    before = states(store)
    entries = dict(load_index(store, Manifest.load(store).shards[0]).states())
    size = entries[b"b"].offset + 100
    os.truncate(store / "shard-00000.lmdb", size)
    lost = sorted(key.decode() for key, entry in entries.items() if entry.offset + entry.length > size)
    mended(store, [key for key in lost if key != "a"], before)  # which the next shard replaces


def test_damage_where_no_state_lies(store):
    before = states(store)
    damage(store / "shard-00000.lmdb", 5)
    assert not verify(store).ok
    mended(store, [], before)


def test_exchanged_shards(store):
    before = states(store)
    for suffix in ("lmdb", "idx"):
        a, b = store / f"shard-00000.{suffix}", store / f"shard-00002.{suffix}"
        data = a.read_bytes()
        a.write_bytes(b.read_bytes()), b.write_bytes(data)
    mended(store, [], before)


def test_an_open_shard_is_sealed(store, open_shard):
    before = states(store)
    report = mended(store, [], before)
    assert not Manifest.load(store).open and "sealed" in report.actions[0]
    assert sorted(p.suffix for p in store.iterdir()).count(".lmdb") == 4 and not list(store.glob("*-lock"))


def test_a_corrupt_record_of_an_open_shard(store, open_shard):
    before = states(store)
    data = open_shard.read_bytes()
    damage(open_shard, data.index(before["o2"]) + 1000)
    mended(store, ["o2"], before)


def test_an_open_shard_without_its_first_pages(store, open_shard):
    """LMDB cannot open it any more. Which marks were the last is not known, so what they may concern is not either."""
    before = states(store)
    damage(open_shard, 0, bytes(8192))
    report = repair(store)
    assert report.lost in ([], ["d"]) and report.uncounted == ["shard-00003.lmdb"] and report.exit_code == 65
    assert verify(store).ok and states(store) == {k: v for k, v in before.items() if k not in report.lost}


def test_an_open_shard_of_noise(store, open_shard):
    before = states(store)
    noise = random.Random(0).randbytes(50_000)
    open_shard.write_bytes(noise)
    report = repair(store)
    assert report.uncounted == ["shard-00003.lmdb"] and report.exit_code == 65 and report.lost == []
    assert verify(store).ok and set(states(store)) == {k for k in before if not k.startswith(("o", "h"))}
    assert (store / "shard-00003.lmdb.damaged").read_bytes() == noise


def test_an_open_shard_that_is_missing(store, open_shard):
    open_shard.unlink()
    report = repair(store)
    assert report.uncounted == ["shard-00003.lmdb"] and report.exit_code == 65 and verify(store).ok


# -- the manifest


@pytest.mark.parametrize("position", [0, 20, 300, -40])
def test_a_manifest_with_a_wrong_byte(store, position):
    before, good = states(store), Manifest.load(store)
    data = bytearray((store / "manifest.json").read_bytes())
    data[position] ^= 1
    (store / "manifest.json").write_bytes(data)
    report = mended(store, [], before)
    assert (store / "manifest.json.damaged").read_bytes() == data and "--like" in report.actions[1]
    now = Manifest.load(store)
    assert (now.dim, now.feature_dtype, now.vocabularies) == (8, "float32", WORDS)
    assert [s.checksum for s in now.shards] == [s.checksum for s in good.shards]


@pytest.mark.parametrize("left", [None, b"", b"{", b"[1, 2]"])
def test_a_manifest_that_is_lost(store, open_shard, tmp_path, make, left):
    before = states(store)
    (store / "manifest.json").unlink() if left is None else (store / "manifest.json").write_bytes(left)
    report = mended(store, [], before, code=65)
    assert report.fingerprint_lost and Manifest.load(store).fingerprint is None
    with pytest.raises(StoreMismatch):
        StoreWriter(store, "float32", {"x": 1})
    with StoreWriter(tmp_path / "like.roi", "float32", {"x": 1}, WORDS) as writer:
        writer.write([make("z")])
    report = repair(store, like=tmp_path / "like.roi")
    assert report.exit_code == 0 and verify(store).ok and states(store) == before
    StoreWriter(store, "float32", {"x": 1}, WORDS).close()


def test_a_model_that_does_not_fit_or_is_not_needed(store, tmp_path, make):
    with StoreWriter(tmp_path / "like.roi", "float16", {"x": 1}, WORDS) as writer:
        writer.write([make("z")])
    with pytest.raises(UsageError, match="--like"):
        repair(store, like=tmp_path / "like.roi")
    (store / "manifest.json").unlink()
    with pytest.raises(StoreMismatch, match="feature_dtype"):
        repair(store, like=tmp_path / "like.roi")
    with pytest.raises(StoreNotFound):
        repair(store, like=tmp_path / "nothing.roi")


def test_a_manifest_that_says_something_else_than_the_records(store):
    before = states(store)
    replace(Manifest.load(store), dim=9).save(store)
    mended(store, [], before)


def test_a_store_of_another_format_is_left_alone(store):
    replace(Manifest.load(store), format=2).save(store)
    with pytest.raises(StoreDamaged, match="format"):
        repair(store)


# -- what lies about


def test_a_shard_that_the_manifest_does_not_know(store, make, tmp_path):
    before, manifest = states(store), Manifest.load(store)
    manifest.only({0, 1}).save(store)
    with pytest.raises(StoreDamaged, match="roivault repair"):
        StoreWriter(store, "float32")
    report = mended(store, [], before)
    assert "taken in" in report.actions[0]


def test_a_shard_of_another_kind_of_store(store, make, tmp_path):
    before = states(store)
    with StoreWriter(tmp_path / "t.roi", "float16") as writer:
        writer.write([make("z", d=5)])
    shutil.copyfile(tmp_path / "t.roi" / "shard-00000.lmdb", store / "shard-00007.lmdb")
    (store / "shard-x.lmdb").write_bytes(b"?")
    report = mended(store, [], before)
    assert sorted(report.aside) == ["shard-00007.lmdb.damaged", "shard-x.lmdb.damaged"]


@pytest.mark.parametrize("name", ["manifest.json", "shard-00001.lmdb"])
def test_a_folder_in_the_place_of_a_file(store, name):
    before = states(store)
    (store / name).unlink()
    (store / name).mkdir()
    report = mended(store, ["a"] if name.endswith("lmdb") else [], before, code=65)
    assert f"{name}.damaged" in report.aside and (store / f"{name}.damaged").is_dir()


def test_what_killed_processes_left(store):
    before = states(store)
    for name in (
        "shard-00009.lmdb.tmp",
        "manifest.json.tmp",
        "writer.lock",
        "shard-00000.lmdb-lock",
        "shard-00009.idx",
    ):
        (store / name).write_bytes(b"left")
    mended(store, [], before)
    assert not {"shard-00009.lmdb.tmp", "manifest.json.tmp", "writer.lock", "shard-00000.lmdb-lock"} & {
        *os.listdir(store)
    }


def test_a_live_writer_is_named(store, make):
    with StoreWriter(store, "float32") as writer:
        writer.write([make("new")])
        with pytest.raises(StoreLocked, match=str(os.getpid())):
            repair(store)
        with pytest.raises(StoreLocked):
            repair(store, dry_run=True)


def test_no_store(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "notes.txt"):
        with pytest.raises(StoreNotFound):
            repair(path)
    assert os.listdir(tmp_path) == ["notes.txt"]
    (tmp_path / "shard-00000.lmdb").write_bytes(b"noise")
    with pytest.raises(StoreDamaged, match="neither"):
        repair(tmp_path)
    assert (tmp_path / "shard-00000.lmdb").read_bytes() == b"noise"


def test_a_disk_that_is_too_small_is_told_before(store, monkeypatch):
    hurt_record(store, "b")
    listing, free = sorted(os.listdir(store)), os.statvfs(store)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([*free[:4], 0, *free[5:]]))
    with pytest.raises(DiskError, match="make room"):
        repair(store)
    assert sorted(os.listdir(store)) == listing


def test_a_disk_without_hard_links(store, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    before = states(store)
    hurt_record(store, "b")
    monkeypatch.setattr(os, "link", refuse)
    mended(store, ["b"], before)
