import os
import threading
import time

import pytest

from cache import client_disk, open_store
from cache import remote as remote_module
from cache.client import ServedFolder
from cache.client_disk import DiskCache
from cache.errors import DiskError, StoreUnreachable, UsageError
from tests.cache.asker import asked


def value(name, length=1000):
    return memoryview((name * length).encode()[:length])


def taken(cache):
    return sum(size for _, size, _ in cache._files())


def test_what_was_put_is_there(tmp_path):
    cache = DiskCache(tmp_path / "records", 10_000)
    cache.put({"a": value("a"), "b": value("b", 3)})
    again = DiskCache(tmp_path / "records", 10_000)
    assert again.get("a", 1000) == value("a") and again.get("b", 3) == value("b", 3)
    assert again.get("a", 999) is None and again.get("c", 3) is None
    again.remove("a"), again.remove("c")
    assert cache.get("a", 1000) is None


def test_what_is_damaged_is_absent(tmp_path):
    cache = DiskCache(tmp_path, 10_000)
    cache.put({"a": value("a"), "b": value("b")})
    for name, change in (("a", lambda data: data[:-1] + b"?"), ("b", lambda data: data[:-1])):
        path = cache._path(name)
        path.write_bytes(change(path.read_bytes()))
        assert cache.get(name, 1000) is None


def test_the_least_used_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(client_disk, "_USED_SECONDS", 0.0)
    cache = DiskCache(tmp_path, 5 * 1008)
    for name in "abcd":
        cache.put({name: value(name)})
        os.utime(cache._path(name), (time.time() - 1000,) * 2)
    cache.get("a", 1000)
    cache.put({"e": value("e"), "f": value("f")})
    assert [name for name in "abcdef" if cache.get(name, 1000)] == ["a", "d", "e", "f"]
    assert taken(cache) <= cache.size
    cache.put({"large": value("x", 6000)})
    assert cache.get("large", 6000) is None and cache.get("a", 1000)


def test_several_writers_stay_within_the_size(tmp_path):
    most = []

    def write(number):
        cache = DiskCache(tmp_path, 20 * 1008)
        for i in range(30):
            cache.put({f"{number}-{i}-{j}": value("x") for j in range(3)})
            with cache._alone():  # else what is removed meanwhile is counted with what takes its place
                most.append(taken(cache))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < max(most) <= 20 * 1008


def test_a_lost_tally_and_abandoned_files(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, 5 * 1008)
    for name in "abcd":
        cache.put({name: value(name)})
    (tmp_path / "tally").unlink()
    (cache._path("a").parent / "x.tmp").write_bytes(bytes(5000))
    monkeypatch.setattr(client_disk, "_ABANDONED_SECONDS", -1.0)
    cache.put({"e": value("e"), "f": value("f")})
    assert taken(cache) <= cache.size and cache.get("f", 1000) and not list(tmp_path.rglob("*.tmp"))


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(client_disk.FOLDER, str(tmp_path / "file"))
    with pytest.raises(DiskError, match="set ROIVAULT_RECORD_CACHE to"):
        DiskCache.of_environment()
    (tmp_path / "records" / "tally").mkdir(parents=True)
    monkeypatch.setenv(client_disk.FOLDER, str(tmp_path / "records"))
    with pytest.raises(DiskError, match="set ROIVAULT_RECORD_CACHE to"):
        DiskCache.of_environment()
    monkeypatch.setenv(client_disk.SIZE, "much")
    with pytest.raises(UsageError, match="ROIVAULT_RECORD_CACHE_SIZE 'much' is not a size"):
        DiskCache.of_environment()
    monkeypatch.delenv(client_disk.FOLDER)
    assert DiskCache.of_environment() is None


def test_records_are_read_from_the_disk_the_second_time(build, tmp_path, monkeypatch, make, same):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setenv(client_disk.FOLDER, str(tmp_path / "records"))
    monkeypatch.setattr(remote_module, "DEADLINE", 0.3)
    asked_for = []
    records_at = ServedFolder.records_at
    monkeypatch.setattr(
        ServedFolder, "records_at", lambda self, places, stop: asked_for.append(len(places)) or records_at(self, places)
    )
    keys = ["a", "b", "c", "d"]
    path = build("s.roi", ["a", "b"], ["c", "d"])
    with asked(path) as server, asked(path) as replica:
        store = open_store(server.url)
        assert len(store.get_many(keys[:3])) == 3 and asked_for == [3]
        for target in (server.url, replica.url):
            assert all(same(regions, make(regions.key)) for regions in open_store(target).get_many(keys[:3]))
        assert asked_for == [3, 0, 0]
        files = list((tmp_path / "records").glob("??/*"))
        assert len(files) == 3
        for file in files:  # whole, but not what the index tells of
            data = bytearray(file.read_bytes()[8:])
            data[300] ^= 255
            file.unlink()
            DiskCache.of_environment().put({file.name: memoryview(bytes(data))})
        assert all(same(regions, make(regions.key)) for regions in open_store(server.url).get_many(keys[:3]))
        assert sum(asked_for) == 6
    assert same(store["a"], make("a")), "the server has ended"
    with pytest.raises(StoreUnreachable):
        store["d"]
