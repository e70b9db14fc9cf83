"""Records read from the file instead of through its mapping."""

import os
from pathlib import Path

import numpy as np
import pytest

from cache import StoreDamaged, StoreWriter, UsageError, cold, open_store
from cache import store as store_module

KEYS = [f"image {i}" for i in range(20)]


@pytest.fixture
def store(tmp_path, make):
    """Two sealed shards and an open one."""
    path = tmp_path / "a.roi"
    writer = StoreWriter(path)
    for start in (0, 8, 16):
        writer.write([make(key, n=40, d=64) for key in KEYS[start : start + 8]])
        if start < 16:
            writer.seal()
    yield open_store(path)
    writer.close()


def test_equals_the_mapping(store, same):
    keys = KEYS[::-1] + KEYS[3:5]
    mapped, read = store.get_many(keys, read="mmap"), store.get_many(keys, read="pread")
    assert all(map(same, mapped, read)) and [item.key for item in read] == keys


def test_is_a_view_of_memory_of_its_own(store):
    mapped, read = store.get_many(KEYS[:2], read="mmap"), store.get_many(KEYS[:2], read="pread")
    for a, b in zip(mapped, read, strict=True):
        assert a.features.base is not None and b.features.base is not None  # views, not copies of unaligned bytes
        assert not b.features.flags.writeable and not np.shares_memory(a.features, b.features)
        assert a.features.ctypes.data % 64 == b.features.ctypes.data % 64 == 0


def test_one_record_and_none(store, same):
    assert same(store.get_many(KEYS[:1], read="pread")[0], store[KEYS[0]])
    assert store.get_many([], read="pread") == []
    with pytest.raises(UsageError, match="mmap"):
        store.get_many(KEYS, read="fast")


@pytest.mark.parametrize("available, threaded", [(0, True), (1 << 50, False), (None, False)])
def test_auto_goes_by_the_memory(store, monkeypatch, available, threaded):
    calls = []
    monkeypatch.setattr(store_module, "available_memory", lambda: available)
    monkeypatch.setattr(store_module, "read_values", lambda places: calls.append(1) or cold.read_values(places))
    assert len(store.get_many(KEYS)) == len(KEYS)
    assert bool(calls) == threaded


def test_checksum_is_compared_the_first_time(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        writer.write([make(key) for key in KEYS])
    shard, offset, length = open_store(path).location(KEYS[0])
    with open(path / f"{shard}.lmdb", "rb+") as file:
        file.seek(offset + length - 1)
        file.write(b"\x01")
    with pytest.raises(Exception, match="checksum"):
        open_store(path).get_many(KEYS, read="pread")
    assert len(open_store(path, verify="never").get_many(KEYS, read="pread")) == len(KEYS)


def test_a_file_that_is_cut_while_it_is_open(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        writer.write([make(key) for key in KEYS])
    store = open_store(path)
    store.get_many(KEYS, read="pread")
    os.truncate(path / "shard-00000.lmdb", 4096)
    with pytest.raises(StoreDamaged, match="shard-00000.lmdb.*cut to 4096"):
        store.get_many(KEYS, read="pread")


def test_a_forked_child_has_threads_of_its_own(store):
    store.get_many(KEYS, read="pread")
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if len(store.get_many(KEYS, read="pread")) == len(KEYS) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_places_are_in_the_order_of_the_disk(store):
    places = store.places([*KEYS, "no such image"])
    assert places[-1].tolist() == [-1, -1, -1]
    assert places[:, 1].tolist() == [0] * 8 + [1] * 8 + [2] * 4 + [-1]
    assert (places[16:20, 2] == -1).all()  # of an open shard
    for key, (_, _, offset) in zip(KEYS[:16], places, strict=False):
        assert store.location(key)[1] == offset


def test_memory_counts_the_limits_of_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "_CGROUPS", tmp_path)
    everything = cold.available_memory()
    assert everything > 1 << 20

    def limit(folder: Path, most: str) -> None:
        (folder / "memory.max").write_text(most)
        (folder / "memory.current").write_text("1500000")
        (folder / "memory.stat").write_text("anon 500000\nfile 1000000\n")

    limit(tmp_path, "max\n")
    assert cold.available_memory() > 3 << 20
    limit(tmp_path, "2000000\n")
    assert cold.available_memory() == 1_500_000
