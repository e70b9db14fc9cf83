import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import fsspec
import pytest

import roivault
from cache import (
    DataError,
    Failure,
    StoreDamaged,
    StoreLocked,
    StoreMismatch,
    StoreNotFound,
    StoreWriter,
    UsageError,
    open_store,
    remote_lock,
)
from cache import remote as remote_module
from cache.publish import Publisher, publish
from cache.remote import RemoteFolder
from cache.verify import verify


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(remote_module, "FIRST_DEADLINE", 0.5)
    monkeypatch.setattr(remote_lock, "_SETTLE", 0)
    monkeypatch.setattr(remote_lock, "_LOOK", 0.02)


@pytest.fixture
def store(build):
    return build("s.roi", ["a", "b"], ["c"], failures=[Failure("f", "empty", "m")], fingerprint={"model": "x"})


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    path = tmp_path / "shared" / "s.roi"
    return f"file://{path}" if request.param == "file" else f"memory://{os.urandom(6).hex()}/s.roi"


def files(url):
    """name -> bytes of what is at a URL."""
    system, path = fsspec.core.url_to_fs(url)
    return {name.rpartition("/")[2]: system.cat_file(name) for name in system.find(path)}


def same_records(one, two):
    one, two = open_store(one), open_store(two)
    assert sorted(one.keys()) == sorted(two.keys()) and list(one.failures()) == list(two.failures())
    return all(bytes(one.record(key)) == bytes(two.record(key)) for key in one.keys())


def test_a_published_store_is_the_same_files(store, url):
    report = publish(store, url, verify=True)
    assert (report.shards, report.copied, report.kept, report.verified) == (2, 2, 0, True)
    assert files(url) == {file.name: file.read_bytes() for file in store.iterdir()}
    assert report.bytes == sum(file.stat().st_size for file in store.glob("shard-*"))
    assert same_records(store, url)


def test_what_is_there_is_not_copied_again(store, url, make, monkeypatch):
    publish(store, url)
    before = files(url)
    again = publish(store, url)
    assert (again.copied, again.kept, again.bytes) == (0, 2, 0) and files(url) == before
    reader = open_store(url)
    with StoreWriter(store, "float32") as writer:
        writer.write([make("new")], [Failure("g", "missing", "m")])
    grown = publish(store, url)
    assert (grown.shards, grown.copied, grown.kept) == (3, 1, 2)
    assert reader.refresh() and "new" in reader and same_records(store, url)


def test_an_interrupted_one_goes_on(store, url, monkeypatch):
    uploads = []
    real = RemoteFolder.upload

    def stop(self, name, *args):
        if len(uploads) == limit:
            raise KeyboardInterrupt
        uploads.append(name)
        real(self, name, *args)

    monkeypatch.setattr(RemoteFolder, "upload", stop)
    first, second = ([f"shard-0000{n}.lmdb", f"shard-0000{n}.idx"] for n in (0, 1))
    for copied in ([], first[:1], first, second[:1], second):
        uploads.clear()
        limit = len(copied)
        with pytest.raises(KeyboardInterrupt):
            publish(store, url)
        assert uploads == copied
        with pytest.raises(StoreNotFound):
            open_store(url)
    limit = 99
    assert publish(store, url).kept == 2 and same_records(store, url) and uploads[2:] == ["index.idx"]


def test_a_part_of_another_store_is_not_taken_for_this_one(store, build, url):
    other = build("t.roi", ["a", "b"], ["c"], salt=1, failures=[Failure("f", "empty", "m")])
    for name in ("shard-00000.lmdb", "shard-00000.idx", "shard-00001.lmdb"):
        RemoteFolder(url).upload(name, other / name)
    assert (other / "shard-00000.lmdb").stat().st_size == (store / "shard-00000.lmdb").stat().st_size
    assert publish(store, url, verify=True).copied == 2
    assert same_records(store, url)


def test_another_store_is_not_overwritten(store, build, url):
    publish(store, url)
    before = files(url)
    for name, options, message in [
        ("u.roi", {"fingerprint": {"model": "y"}}, "model is 'x' at .*, 'y' in"),
        ("v.roi", {"fingerprint": {"model": "x"}, "salt": 1}, "shard-00000 there is another one"),
    ]:
        with pytest.raises(StoreMismatch, match=message):
            publish(build(name, ["a", "b"], ["c"], **options), url)
    with pytest.raises(StoreMismatch, match="shard-00001 there is not in the store"):
        publish(build("w.roi", ["a", "b"], failures=[Failure("f", "empty", "m")], fingerprint={"model": "x"}), url)
    assert files(url) == before


def test_open_shards_are_refused_or_left_out(build, url):
    store = build("o.roi", ["a"], ["b"], open_last=True)
    with pytest.raises(StoreLocked, match="shard-00001 .*--sealed-only"):
        publish(store, url)
    assert not RemoteFolder(url).size("manifest.json")
    assert publish(store, url, sealed_only=True).shards == 1
    assert list(open_store(url).keys()) == ["a"] and not open_store(url).manifest.open
    with StoreWriter(store, "float32"):
        pass
    assert publish(store, url).copied == 1 and sorted(open_store(url).keys()) == ["a", "b"]


def test_what_cannot_be_published(store, tmp_path, build):
    with pytest.raises(StoreNotFound):
        publish(tmp_path / "none.roi", "memory://x/s.roi")
    with pytest.raises(UsageError, match="only be read"):
        publish(store, "https://127.0.0.1/s.roi")
    with pytest.raises(DataError, match="nothing to publish"):
        publish(build("e.roi", ["a"], open_last=True), "memory://x/s.roi", sealed_only=True)
    os.truncate(store / "shard-00001.lmdb", 100)
    with pytest.raises(StoreDamaged, match="shard-00001.lmdb"):
        publish(store, "memory://cut/s.roi")
    with pytest.raises(StoreNotFound):
        open_store("memory://cut/s.roi")


def test_damage_that_sizes_do_not_show_is_found_by_reading_back(store, url):
    publish(store, url)
    path = store / "copy"
    shutil.copy(store / "shard-00001.lmdb", path)
    with open(path, "r+b") as file:
        file.seek(-200, os.SEEK_END)
        file.write(b"?" * 10)
    RemoteFolder(url).upload("shard-00001.lmdb", path)
    path.unlink()
    assert publish(store, url).kept == 2
    with pytest.raises(StoreDamaged, match="shard-00001.lmdb.*read back"):
        publish(store, url, verify=True)


def test_verify_of_a_url(store, url):
    publish(store, url)
    report = verify(url, ids=["a", "zzz"])
    assert (report.problems, report.missing, report.extra) == ([], ["zzz"], 2)
    assert (report.records, report.failures, report.shards) == (3, 1, 2)
    RemoteFolder(url).put("shard-00000.lmdb", (store / "shard-00000.lmdb").read_bytes()[:-1])
    data = (store / "shard-00001.lmdb").read_bytes()
    RemoteFolder(url).put("shard-00001.lmdb", data[:-5000] + bytes(b ^ 1 for b in data[-5000:]))
    first, *others = verify(url).problems
    assert first.startswith(f"{url}/shard-00000.lmdb: it has 49151 bytes, the manifest says 49152") and others
    assert all(problem.startswith(f"{url}/shard-00001.lmdb") for problem in others)


# -- the lock


def test_two_at_once(store, url):
    lock = remote_lock.RemoteLock(RemoteFolder(url))
    remote_lock.BEAT, before = 0.05, remote_lock.BEAT
    lock._ended.set()
    lock._thread.join()
    lock._ended.clear()
    lock._thread = remote_lock.threading.Thread(target=lock._beat)
    lock._thread.start()
    try:
        with pytest.raises(StoreLocked, match=f"is being written by process {os.getpid()} on .*"):
            publish(store, url)
    finally:
        remote_lock.BEAT = before
        lock.release()
    assert publish(store, url).copied == 2 and remote_lock.FILE not in files(url)


def test_the_lock_of_the_dead_is_taken_over(url, store, monkeypatch):
    folder = RemoteFolder(url)
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    held = {"token": "t", "pid": int(child.stdout), "host": "h", "processes": remote_lock._process_space()}
    folder.put(remote_lock.FILE, json.dumps(held).encode())
    begin = time.monotonic()
    remote_lock.RemoteLock(folder).release()
    assert time.monotonic() - begin < remote_lock.STALE, "its process does not run, so nobody needs to wait"
    monkeypatch.setattr(remote_lock, "STALE", 0.1)
    for other in (json.dumps({**held, "processes": "elsewhere"}).encode(), b"no json", b"[]", b"7"):
        folder.put(remote_lock.FILE, other)
        remote_lock.RemoteLock(folder).release()
    assert remote_lock.FILE not in files(url)


def test_a_lock_that_is_given_up_while_another_waits(url, store):
    first = remote_lock.RemoteLock(RemoteFolder(url))
    threading.Timer(0.2, first.release).start()
    begin = time.monotonic()
    remote_lock.RemoteLock(RemoteFolder(url)).release()
    assert time.monotonic() - begin < remote_lock.STALE and remote_lock.FILE not in files(url)


def test_a_lock_whose_answer_was_lost_is_held_nevertheless(url, monkeypatch):
    """The file was made, but the server's answer did not arrive, so that the second try finds it there."""
    real = RemoteFolder.put

    def put(self, name, data, create=False):
        real(self, name, data, create)
        if create:
            raise FileExistsError

    monkeypatch.setattr(RemoteFolder, "put", put)
    lock = remote_lock.RemoteLock(RemoteFolder(url))
    lock.check()
    lock.release()


def test_a_lock_that_was_lost_is_noticed_before_anything_is_registered(store, url, monkeypatch):
    folder = RemoteFolder(url)
    real = Publisher.put_index

    def lose(self, manifest):
        folder.put(remote_lock.FILE, b'{"token": "other", "pid": 1}')
        real(self, manifest)
        lock.check()

    lock = remote_lock.RemoteLock(folder)
    folder.put(remote_lock.FILE, b'{"token": "other", "pid": 1}')
    with pytest.raises(StoreLocked, match="was taken over by process 1"):
        lock.check()
    lock.release()
    assert json.loads(files(url)[remote_lock.FILE])["token"] == "other"


# -- the command


def test_the_command(store, tmp_path, capsys):
    url = f"file://{tmp_path}/shared/s.roi"
    assert roivault.main(["publish", str(store), url, "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "store": str(store), "url": url, "shards": 2, "copied": 2, "kept": 0, "verified": True,
        "bytes": sum(file.stat().st_size for file in store.glob("shard-*")),
    }  # fmt: skip
    assert roivault.main(["publish", str(store), url]) == 0
    assert "2 shards, 0 copied" in capsys.readouterr().out
    for line, code in [
        (["info", url], 0), (["ls", url], 0), (["ls", url, "--failures"], 0), (["show", url, "a"], 0),
        (["verify", url, "--digest"], 0), (["convert", url, "-o", str(tmp_path / "back.roi")], 0),
        (["publish", url, "memory://x"], 2), (["publish", str(store), "https://host/x"], 2), (["repair", url], 2),
        (["merge", url, str(store), "-o", str(tmp_path / "m.roi")], 2),
    ]:  # fmt: skip
        assert roivault.main(line) == code, line
    assert same_records(tmp_path / "back.roi", store)


@pytest.mark.parametrize("moment", range(4))
def test_killed_while_it_publishes(build, tmp_path, moment):
    store = build("k.roi", *([f"{n}/{i}" for i in range(20)] for n in range(12)), d=512)
    url = f"file://{tmp_path}/shared/k.roi"
    line = [sys.executable, "-m", "roivault", "publish", str(store), url]
    process = subprocess.Popen(line, cwd=roivault.Path(roivault.__file__).parent, stderr=subprocess.DEVNULL)
    wanted = tmp_path / "shared" / "k.roi" / f"shard-{3 * moment:05d}.lmdb"
    while not wanted.exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (tmp_path / "shared" / "k.roi" / "manifest.json").exists():
        assert same_records(store, url)
    report = publish(store, url, verify=True)
    assert report.copied + report.kept == 12 and report.kept >= 3 * moment and same_records(store, url)
    assert len(files(url)) == 12 * 2 + 2
