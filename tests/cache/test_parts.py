import contextlib
import os
from collections import Counter

import pytest

from cache import Failure, StoreDamaged, StoreLocked, StoreMismatch, StoreWriter, open_store, remote_lock
from cache.destination import Destination
from cache.parts import Collector, PartWriter, owner_of
from cache.remote import RemoteFolder
from cache.verify import verify

KEYS = [f"{n:02d}.jpg" for n in range(40)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(remote_lock, "_SETTLE", 0)
    monkeypatch.setattr(remote_lock, "_LOOK", 0.02)


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    return f"file://{tmp_path}/shared/s.roi" if request.param == "file" else f"memory://{os.urandom(6).hex()}/s.roi"


@pytest.fixture
def collect(url, tmp_path):
    """Opens the store at the URL for writers."""

    @contextlib.contextmanager
    def opened(work="work", **choices):
        with Destination(url, tmp_path / work) as destination:
            choices = {"feature_dtype": "float16", "shard_size": 2**30, **choices}
            with Collector(destination.path, destination=destination, **choices) as collector:
                collector.provenance = {"engine": "test"}
                yield collector

    return opened


def end(collector, writer):
    """Seal the part of a writer, and bring and register it."""
    part = writer.part
    assert writer.end()
    brought = writer.bring(part, collector.next_number())
    collector.register(brought)
    return brought


def test_every_key_has_one_owner_and_owners_have_about_as_many():
    owners = Counter(owner_of(f"{n}.jpg", 4) for n in range(4000))
    assert sorted(owners) == [0, 1, 2, 3] and min(owners.values()) > 800
    assert owner_of("a", 1) == 0


def test_parts_of_several_writers_are_one_store(collect, url, tmp_path, make, same):
    with collect() as collector:
        writers = [PartWriter(collector.plan(), number) for number in range(3)]
        for _ in range(2):
            for number, writer in enumerate(writers):
                mine = [key for key in KEYS if owner_of(key, 3) == number]
                half = mine[::2] if not writer.part else mine[1::2]
                writer.write([make(key) for key in half], [Failure(f"f{number}", "empty", "why")], "drop")
                assert writer.states([half[0], "absent"]) == ["record", None]
                end(collector, writer)
        assert collector.states(KEYS) == ["record"] * len(KEYS)
        for writer in writers:
            writer.close()
    store = open_store(url)
    assert [shard.number for shard in store.manifest.shards] == list(range(6)) and store.manifest.dim is not None
    assert [shard.provenance for shard in store.manifest.shards] == [({"engine": "test"},)] * 6
    assert sorted(store.keys()) == KEYS and len(list(store.failures())) == 3
    assert verify(url).ok and all(same(store[key], make(key, dtype="f2")) for key in KEYS)
    assert RemoteFolder(url).size("index.idx") and not list((tmp_path / "work").glob("writers*"))


def test_what_is_not_registered_is_not_there_and_is_removed(collect, url, make):
    with collect() as collector:
        plan = collector.plan()
        writer, lost = PartWriter(plan, 0), PartWriter(plan, 1)
        writer.write([make("a")], [], "drop")
        end(collector, writer)
        lost.write([make("b")], [], "drop")
        assert lost.end()
        number = lost.bring(0, collector.next_number()).shard.number
        assert collector.states(["a", "b"]) == ["record", None]
        lost.write([make("c")], [], "drop")
        left = [path.name for path in lost._common.iterdir()]
        heir = PartWriter(plan, 1)
        assert [path.name for path in heir._common.iterdir()] == [writer._folder.name] and len(left) == 2
        assert RemoteFolder(url).size(f"shard-{number:05d}.lmdb")
    assert f"shard-{number:05d}.lmdb" not in RemoteFolder(url).names()
    assert list(open_store(url).keys()) == ["a"]


def test_a_job_that_was_killed_leaves_nothing_and_its_numbers_are_not_used(collect, url, make):
    with pytest.raises(ZeroDivisionError), collect() as collector:
        lost = PartWriter(collector.plan(), 0)
        lost.write([make("a")], [], "drop")
        lost.end()
        lost.bring(0, collector.next_number())
        raise ZeroDivisionError
    assert "shard-00000.lmdb" in RemoteFolder(url).names()
    with collect("new") as collector:
        assert "shard-00000.lmdb" not in RemoteFolder(url).names()
        writer = PartWriter(collector.plan(), 0)
        writer.write([make("a")], [], "drop")
        end(collector, writer)
    assert [shard.number for shard in open_store(url).manifest.shards] == [1]


def test_states_that_replace_win_over_earlier_shards(collect, url, make, same):
    with collect() as collector:
        writer = PartWriter(collector.plan(), 0)
        writer.write([make("a"), make("b")], [Failure("c", "empty", "why")], "drop")
        end(collector, writer)
        writer.earlier = {"a": "record", "c": Failure("c", "empty", "why")}
        assert writer.states(["a", "b"]) == ["record", None]
        new = [make("a", salt=1), make("b", salt=1), make("c", salt=1)]
        writer.write(new, [], "replace")
        end(collector, writer)
    store = open_store(url)
    salts = {"a": 1, "b": 0, "c": 1}  # of b nobody said that it was to be replaced
    assert all(same(store[key], make(key, salt=salt, dtype="f2")) for key, salt in salts.items())


def test_a_writer_in_the_working_folder_is_followed(collect, url, tmp_path, make):
    with Destination(url, tmp_path / "work") as destination:
        with contextlib.suppress(ZeroDivisionError), StoreWriter(destination.path, destination=destination) as writer:
            writer.write([make("a")])
            raise ZeroDivisionError
    with collect() as collector:
        assert collector.states(["a"]) == ["record"] and list(open_store(url).keys()) == ["a"]
        writer = PartWriter(collector.plan(), 0)
        writer.write([make("b")], [], "drop")
        end(collector, writer)
    assert [shard.number for shard in open_store(url).manifest.shards] == [0, 1]


def test_shards_without_a_manifest_are_not_removed(collect, url, make):
    RemoteFolder(url).put("shard-00000.lmdb", b"may be what is left of a store")
    with pytest.raises(StoreDamaged, match="no manifest"), collect():
        pass
    assert RemoteFolder(url).names() == ["shard-00000.lmdb"]


def test_another_dimension_is_refused(collect, url, make):
    with pytest.raises(StoreMismatch, match="dimension"), collect() as collector:
        for number, d in enumerate((4, 5)):
            writer = PartWriter(collector.plan(), number)
            writer.write([make(f"{d}", d=d)], [], "drop")
            end(collector, writer)
    assert list(open_store(url).keys()) == ["4"]


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_who_writes_there_in_place_is_kept_out_and_keeps_out(collect, url, tmp_path):
    folder = RemoteFolder(url).local
    with StoreWriter(folder), pytest.raises(StoreLocked, match="is being written"), collect():
        pass
    with collect(), pytest.raises(StoreLocked, match="is being written"):
        StoreWriter(folder)
    assert RemoteFolder(url).names() == ["manifest.json"]
