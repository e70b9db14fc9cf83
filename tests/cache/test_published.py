import multiprocessing
import os
import pickle
import shutil
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import fsspec
import numpy as np
import pytest
from torch.utils.data import DataLoader

from cache import (
    CorruptRecord,
    DiskError,
    Failure,
    MissingKeys,
    StoreDamaged,
    StoreNotFound,
    StoreWriter,
    open_store,
    published,
)
from cache import remote as remote_module
from cache.dataset import RegionDataset, RegionLoader
from cache.errors import StoreUnreachable, UsageError
from cache.manifest import Manifest
from cache.mirror import Mirror
from cache.ranges import GAP, Range, coalesce
from cache.remote import RemoteFolder
from tests.cache.web import serving

FAILED = [Failure("f1", "empty", "m"), Failure("f2", "missing", "gone", "there.jpg")]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Mirrors of this test's own, and little patience."""
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(remote_module, "FIRST_DEADLINE", 0.5)
    monkeypatch.setattr(remote_module, "DEADLINE", 0.5)
    monkeypatch.setattr(remote_module, "_FIRST_PAUSE", 0.01)


@pytest.fixture
def path(build):
    return build("a b.roi", ["a", "b", "c"], ["d/1", "d/2"], failures=FAILED)


@pytest.fixture
def web(path):
    with serving(path) as web:
        yield web


def in_memory(path):
    """A copy of a store at a memory:// URL."""
    files = fsspec.filesystem("memory")
    url = f"memory://{path.name}-{os.urandom(4).hex()}.roi"
    for file in path.iterdir():
        files.pipe_file(f"{url}/{file.name}", file.read_bytes())
    return url


@pytest.fixture(params=["file", "memory", "http"])
def url(request, path, web):
    return {"file": f"file://{path}", "memory": in_memory(path), "http": web.url}[request.param]


def test_a_published_store_is_read_like_a_local_one(path, url, same):
    store, local = open_store(url), open_store(path)
    assert str(store.paths[0]) == url and url in repr(store)
    assert list(store.keys()) == list(local.keys()) and len(store) == 5 and "a" in store and "f1" not in store
    assert list(store.failures()) == list(local.failures()) != []
    assert store.manifest == local.manifest
    keys = ["d/2", "a", "c", "a", "b", "d/1"]
    for read in ("auto", "mmap", "pread"):
        assert all(map(same, store.get_many(keys, read=read), local.get_many(keys)))
    assert same(store["a"], local["a"]) and bytes(store.record("b")) == bytes(local.record("b"))
    assert store.get("z") is None and len(store.get_many(["z", "a", "f1"], missing="skip")) == 1
    assert store.location("d/1") == local.location("d/1")
    assert np.array_equal(store.places([*keys, "z"]), local.places([*keys, "z"]))
    with pytest.raises(MissingKeys, match="f2.*failed: missing: gone"):
        store["f2"]
    again = pickle.loads(pickle.dumps(store))
    assert again.paths == store.paths and same(again["c"], local["c"])
    (apart,) = store.apart()
    assert same(apart["c"], local["c"])


def test_arrays_are_aligned_and_owned(url):
    for regions in open_store(url).get_many(["a", "d/1"]):
        assert regions.features.ctypes.data % 64 == 0 and not regions.features.flags.writeable


def test_some_shards_of_it(path, web, same):
    store = open_store(f"{web.url}/shard-00001.lmdb")
    assert sorted(store.keys()) == ["d/1", "d/2"] and "a" not in store
    assert sorted(store.apart()[0].keys()) == ["d/1", "d/2"]
    assert sorted(open_store([f"{web.url}/shard-00001.lmdb", web.url]).keys()) == ["a", "b", "c", "d/1", "d/2"]


def test_together_with_local_stores(web, build, make, same):
    other = build("other.roi", ["x", "a"], ["y"], open_last=True)
    for target in ([web.url, other], [str(other), web.url]):
        store = open_store(target)
        assert sorted(store.keys()) == ["a", "b", "c", "d/1", "d/2", "x", "y"]
        assert all(same(regions, make(regions.key)) for regions in store.get_many(sorted(store.keys())))


def test_open_shards_are_not_published(build, web, tmp_path):
    with serving(build("open.roi", ["a"], ["b"], open_last=True)) as other:
        store = open_store(other.url)
        assert list(store.keys()) == ["a"] and not store.manifest.open


def test_what_is_known_is_not_fetched_again(web):
    open_store(web.url)
    assert web.requests() == {"manifest.json": 2, "index.idx": 2}
    web.asked.clear()
    store = open_store(web.url)
    assert web.requests() == {"manifest.json": 1} and web.asked[0][1:] == (0, 31)
    store.get_many(["a", "b", "c"])
    assert web.requests() == {"manifest.json": 1, "shard-00000.lmdb": 1}, "neighbours are read as one"
    for _ in range(5):
        store.get("z")
    assert web.requests()["manifest.json"] == 1, "a miss looks for a newer manifest, but not each time"


def test_no_more_than_the_records_is_read(web, path):
    store = open_store(web.url)
    web.asked.clear()
    regions = store["d/2"]
    _, offset, length = open_store(path).location("d/2")
    assert web.asked == [("shard-00001.lmdb", offset, offset + length - 1)] and regions.key == "d/2"


def test_prefetch_reads_before_it_is_asked(web, same, make):
    store = open_store(web.url)
    store.prefetch(["a", "b", "d/1", "f1", "z"])
    assert all(same(regions, make(regions.key)) for regions in store.get_many(["a", "b", "d/1"]))
    assert web.requests()["shard-00000.lmdb"] == 1 and web.requests()["shard-00001.lmdb"] == 1
    store.get("a")
    assert web.requests()["shard-00000.lmdb"] == 2


def test_ranges_are_read_together_where_that_is_cheaper():
    near = [Range("x", 0, 10), Range("x", 10, 10), Range("x", 20 + GAP, 10)]
    far = [Range("x", 31 + 2 * GAP, 10), Range("y", 31 + 2 * GAP, 10), Range("y", 35 + 2 * GAP, 10)]
    assert coalesce([*far, *near, near[0]]) == [near, [far[0]], [far[1]], [far[2]]]


def test_a_store_that_grows_is_seen(build, path, make, same, tmp_path):
    url = in_memory(path)
    store = open_store(url)
    assert not store.refresh()
    with StoreWriter(path, "float32") as writer:
        writer.write([make("new")])
    files = fsspec.filesystem("memory")
    for file in sorted(path.iterdir(), reverse=True):
        files.pipe_file(f"{url}/{file.name}", file.read_bytes())
    assert store.refresh() and same(store["new"], make("new")) and len(store) == 6
    assert sorted(open_store(url).keys()) == sorted(open_store(path).keys())


def test_a_damaged_mirror_is_mended(path, web):
    open_store(web.url)
    mirror = Mirror(RemoteFolder(web.url)).path
    for name in ("index.idx", "manifest.json"):
        (mirror / name).write_bytes((mirror / name).read_bytes()[:-1] + b"?")
    assert len(open_store(web.url)) == 5
    (path / "index.idx").unlink()
    (mirror / "index.idx").unlink()
    assert len(open_store(web.url)) == 5
    (mirror / "shard-00001.idx").write_bytes(b"")
    assert len(open_store(web.url)) == 5
    shutil.rmtree(mirror)
    assert len(open_store(web.url)) == 5


def test_a_mirror_that_cannot_be_written(web, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "file"))
    with pytest.raises(DiskError, match="set ROIVAULT_CACHE"):
        open_store(web.url)


# -- damage and failing networks


def test_a_record_that_arrives_altered_is_read_again_then_refused(path, web):
    _, offset, length = open_store(path).location("b")
    spoiled = []

    def spoil(name, data):
        if name == "shard-00000.lmdb" and len(spoiled) < limit:
            spoiled.append(name)
            return data[:300] + bytes([data[300] ^ 255]) + data[301:]
        return data

    web.answer = spoil
    for limit, check in ((1, "first"), (9, "first"), (9, "always")):
        spoiled.clear()
        store = open_store(web.url, verify=check)
        if limit == 1:
            assert store["b"].key == "b"
        else:
            with pytest.raises(CorruptRecord, match=f"'b'.*{web.url}/shard-00000.lmdb, byte {offset}"):
                store["b"]


def test_a_shard_that_is_shorter_than_it_should_be(path, web):
    _, offset, _ = open_store(path).location("b")
    os.truncate(path / "shard-00000.lmdb", offset + 10)
    with pytest.raises(StoreDamaged, match=f"{web.url}/shard-00000.lmdb: it ends at byte {offset + 10}"):
        open_store(web.url)["b"]
    os.truncate(path / "shard-00000.lmdb", offset)
    with pytest.raises(StoreDamaged, match=f"{web.url}/shard-00000.lmdb: it ends at byte {offset}"):
        open_store(web.url)["b"]
    (path / "shard-00000.lmdb").unlink()
    with pytest.raises(StoreDamaged, match=f"{web.url}/shard-00000.lmdb: the shard is missing"):
        open_store(web.url)["b"]


@pytest.mark.parametrize("name, message", [
    ("manifest.json", "manifest.json: its checksum is wrong"), ("shard-00001.idx", "shard-00001.idx: "),
])  # fmt: skip
def test_files_that_were_altered(path, web, name, message):
    (path / "index.idx").unlink()
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[:-10] + bytes(10))
    with pytest.raises(StoreDamaged, match=f"{web.url}/{message}"):
        open_store(web.url)
    (path / name).unlink()
    with pytest.raises((StoreDamaged, StoreNotFound), match=f"{web.url}/{name}"):
        open_store(web.url)


def test_an_index_of_another_store_is_refused(path, web, build):
    other = build("other.roi", ["a", "b", "c"], ["q/1", "q/2"], failures=FAILED)
    shutil.copy(other / "shard-00001.idx", path)
    shutil.copy(other / "index.idx", path)
    with pytest.raises(StoreDamaged, match=f"{web.url}/shard-00001.idx: its checksum is .* the manifest says"):
        open_store(web.url)


def test_sizes_that_lie(path, web):
    """A hostile manifest may promise anything: what is not there is not waited for, and no file is named but ours."""
    huge = 1 << 59
    honest = Manifest.load(path)
    for change in ({"bytes": huge}, {"bytes": 10}, {"index_bytes": huge}, {"index_bytes": 10}):
        shards = tuple(replace(shard, **change) for shard in honest.shards)
        replace(honest, shards=shards).save(path)
        (path / "index.idx").unlink(missing_ok=True)
        shutil.rmtree(Mirror(RemoteFolder(web.url)).path, ignore_errors=True)
        if change == {"bytes": huge}:
            assert open_store(web.url)["a"].key == "a"
            continue
        with pytest.raises(StoreDamaged, match=web.url):
            open_store(web.url)["a"]
    assert set(web.requests()) <= {file.name for file in path.iterdir()} | {"index.idx"}


def test_a_server_without_ranges_is_refused_before_it_sends_a_shard(web):
    web.ranges = False
    with pytest.raises(StoreDamaged, match="byte ranges"):
        open_store(web.url)
    assert set(web.requests()) == {"manifest.json"}


def test_a_network_that_fails_now_and_then(web, same, make):
    store = open_store(web.url)
    calls = []

    def fail_twice(name, data):
        calls.append(name)
        return 503 if len(calls) % 3 else data

    web.answer = fail_twice
    assert all(same(regions, make(regions.key)) for regions in store.get_many(["a", "b", "d/1"]))


@pytest.mark.parametrize("status, error, remedy", [
    (503, StoreUnreachable, "run the same line again"), (403, DiskError, "credentials"), (410, DiskError, "refuses"),
])  # fmt: skip
def test_a_server_that_goes_on_failing(web, status, error, remedy):
    store = open_store(web.url)
    web.answer = lambda name, data: status
    with pytest.raises(error, match=f"{web.url}/shard-00000.lmdb.*{remedy}") as raised:
        store.get_many(["a", "d/1"])
    assert raised.value.exit_code == (75 if status == 503 else 74)


def test_a_miss_does_not_need_the_server(web, monkeypatch):
    store = open_store(web.url)
    web.answer = lambda name, data: 503
    monkeypatch.setattr(published, "MISS_SECONDS", -1.0)
    assert store.get("z") is None and "z" not in store and "a" in store
    with pytest.raises(StoreUnreachable):
        store.refresh()


def test_nobody_there():
    with pytest.raises(StoreUnreachable, match="http://127.0.0.1:9/a.roi/manifest.json cannot be reached"):
        open_store("http://127.0.0.1:9/a.roi")
    for url in ("memory://nothing.roi", "file:///nowhere/nothing.roi"):
        with pytest.raises(StoreNotFound, match=url):
            open_store(url)


def test_what_is_secret_is_said_nowhere(web, capfd):
    url = web.url.replace("http://", "http://me:sesame@") + "?sig=open-sesame"
    store = open_store(url)
    assert store["a"].key == "a"
    web.answer = lambda name, data: 500
    said = [repr(store), str(store.paths), str(Mirror(store.paths[0]).path)]
    for target in (store, RemoteFolder(url)):
        try:
            target.get("b") if target is store else target.read("manifest.json", 0, 10)
        except StoreUnreachable as error:
            said.append(f"{error!r} {error} {error.__cause__}")
    web.answer = lambda name, data: 403
    with pytest.raises(DiskError) as raised:
        store.get("b")
    said += [str(raised.value), *capfd.readouterr()]
    assert len(said) == 8 and not any("sesame" in text for text in said)


@pytest.mark.parametrize("url, packages", [("s3://b/a.roi", "fsspec s3fs"), ("gs://b/a.roi", "fsspec gcsfs")])
def test_a_driver_that_is_not_installed_is_named(url, packages):
    try:
        __import__(packages.split()[1])
    except ImportError:
        with pytest.raises(UsageError, match=f"pip install {packages}"):
            open_store(url)
    else:
        pytest.skip(f"{packages} is installed")


def test_without_fsspec(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(UsageError, match="pip install fsspec aiohttp"):
        open_store("https://127.0.0.1/a.roi")


# -- other processes and threads


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_another_process(web, method, same):
    store, keys = open_store(web.url), ["a", "d/1", "b"]
    here = store.get_many(keys)
    store.prefetch(keys)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as other:
        there = other.submit(store.get_many, keys).result(timeout=60)
    assert all(map(same, here, there)) and all(map(same, here, store.get_many(keys)))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_in_loader_workers(web, path, method):
    loaders = [
        RegionLoader(target, None, 2, num_workers=workers, multiprocessing_context=method if workers else None)
        for target, workers in ((path, 0), (web.url, 2))
    ]
    local, far = (list(loader) for loader in loaders)
    assert [batch.keys for batch in local] == [batch.keys for batch in far]
    assert all(np.array_equal(a.features, b.features) for a, b in zip(local, far, strict=True))


def test_as_a_plain_dataset(web):
    dataset = RegionDataset(web.url, ["d/1", "a"])
    assert [regions.key for batch in DataLoader(dataset, 2, collate_fn=list) for regions in batch] == ["d/1", "a"]


def test_many_threads(web, make, same):
    store, wrong = open_store(web.url), []

    def read(number):
        for key in ("a", "b", "c", "d/1", "d/2") * 3:
            store.prefetch([key, "a"])
            if not same(store[key], make(key)):
                wrong.append((number, key))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
