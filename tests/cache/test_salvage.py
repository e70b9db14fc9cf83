from __future__ import annotations

import pytest

from cache import Failure, StoreDamaged, StoreWriter
from cache.manifest import Manifest
from cache.salvage import examine, remake
from cache.snapshot import load_index


@pytest.fixture
def shard(tmp_path, make):
    """A sealed shard with a record that was replaced within it, and another that replaced a failure."""
    with StoreWriter(tmp_path / "s.roi", "float32") as writer:
        writer.write([make("a"), make("b")], [Failure("f", "empty", "m"), Failure("g", "empty", "m")])
        writer.write([make("a", salt=1), make("f")], on_duplicate="replace")
    return tmp_path / "s.roi" / "shard-00000.lmdb"


@pytest.fixture
def index(shard):
    return dict(load_index(shard.parent, Manifest.load(shard.parent).shards[0]).states())


def test_the_pages_tell_what_the_index_tells(shard, index):
    found = examine(shard, 0, {}, complete=False, expected=None)
    assert found.states == index and found.whole and not found.broken and found.unnamed == 0
    assert found.features == dict.fromkeys([b"a", b"b", b"f"], ("float32", 8))
    assert examine(shard, 0, index, complete=True, expected=4).states == index
    sealed = load_index(shard.parent, Manifest.load(shard.parent).shards[0])
    assert found.index().save(shard.parent / "again.idx") == sealed.checksum


def test_what_is_broken_is_named(shard, index):
    with open(shard, "r+b") as file:
        file.seek(index[b"b"].offset + 300)
        file.write(b"damage")
    for known, complete in ((index, True), (index, False), ({}, False)):
        found = examine(shard, 0, known, complete, 4)
        assert list(found.broken) == [b"b"] and set(found.states) == {b"a", b"f", b"g"} and not found.whole
        assert found.unnamed == 0


def test_a_shard_without_a_file(shard, index):
    shard.unlink()
    found = examine(shard, 0, index, complete=False, expected=6)
    assert (found.states, found.broken, found.unnamed) == ({}, index, 2)
    assert examine(shard, 0, {}, complete=False, expected=None).unnamed is None


def test_of_several_versions_none_is_taken_when_none_is_known_to_be_the_last(shard, index):
    with open(shard, "r+b") as file:
        file.write(bytes(4096))
    found = examine(shard, 0, {}, complete=False, expected=4)
    assert set(found.states) == {b"b", b"g"} and set(found.broken) == {b"a", b"f"} and not found.whole
    assert {b"b", b"g"} <= found.unmarked
    found = examine(shard, 0, index, complete=False, expected=4)
    assert found.states == index and not found.broken and not found.unmarked


def test_features_of_another_store_are_refused(shard):
    found = examine(shard, 0, {}, complete=False, expected=None)
    found.refuse_features(("float32", 9))
    assert set(found.broken) == {b"a", b"b", b"f"} and set(found.states) == {b"g"} and not found.whole


def test_a_shard_is_made_anew_of_what_is_left(shard, index, tmp_path):
    found = examine(shard, 0, index, complete=True, expected=4)
    found.drop(b"b")
    before = shard.read_bytes()
    path, made = remake(shard, shard, 0, found)
    assert path.name == "shard-00000.lmdb.tmp" and shard.read_bytes() == before and made.whole
    assert {key: (entry.checksum, entry.flags) for key, entry in made.states.items()} == {
        key: (entry.checksum, entry.flags) for key, entry in index.items() if key != b"b"
    }
    assert sorted(p.name for p in shard.parent.glob("*.tmp*")) == [path.name]


def test_what_changes_meanwhile_is_found(shard, index):
    found = examine(shard, 0, index, complete=True, expected=4)
    with open(shard, "r+b") as file:
        file.seek(index[b"b"].offset + 300)
        file.write(b"damage")
    with pytest.raises(StoreDamaged, match="changed while they were copied"):
        remake(shard, shard, 0, found)
