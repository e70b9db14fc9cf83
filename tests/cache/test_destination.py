import contextlib
import os
import shutil
import subprocess
import sys
from random import Random

import pytest

from cache import Failure, StoreLocked, StoreMismatch, StoreNotFound, StoreWriter, UsageError, open_store, remote_lock
from cache import remote as remote_module
from cache.destination import Destination
from cache.errors import StoreUnreachable
from cache.publish import manifest_at
from cache.remote import RemoteFolder
from cache.verify import verify


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(remote_module, "FIRST_DEADLINE", 0.2)
    monkeypatch.setattr(remote_module, "DEADLINE", 0.2)
    monkeypatch.setattr(remote_module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(remote_lock, "_SETTLE", 0)
    monkeypatch.setattr(remote_lock, "_LOOK", 0.02)
    monkeypatch.setattr(remote_lock, "STALE", 0.1)


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    path = tmp_path / "shared" / "s.roi"
    return f"file://{path}" if request.param == "file" else f"memory://{os.urandom(6).hex()}/s.roi"


KEYS = [[f"{n}/{i}" for i in range(4)] for n in range(6)]


@pytest.fixture
def extract(make):
    """Write what the store lacks, a shard for each group of keys; returns the keys that were made."""

    def run(url, work, groups=KEYS, after=lambda group, destination: None):
        made = []
        with Destination(url, work) as destination, StoreWriter(destination.path, destination=destination) as writer:
            for place, group in enumerate(groups):
                new = [key for key, state in zip(group, writer.states(group), strict=True) if state is None]
                if new:
                    made += new
                    writer.write([make(key) for key in new], [Failure(f"f{place}", "empty", f"of {place}")])
                after(place, destination)
                writer.seal()
        return made

    return run


def whole(url, make, same):
    """Every key once, with its own record."""
    store = open_store(url)
    assert sum(shard.records for shard in store.manifest.shards) == len(store) == sum(map(len, KEYS))
    assert sorted(f.message for f in store.failures()) == [f"of {n}" for n in range(6)]
    return verify(url).ok and all(same(regions, make(regions.key, dtype="f2")) for regions in map(store.get, store))


def held(work):
    return sorted(file.name for file in work.iterdir() if file.suffix == ".lmdb")


def test_a_store_comes_to_be_at_its_url(extract, url, tmp_path, make, same):
    work = tmp_path / "work"
    most = []
    made = extract(url, work, after=lambda place, destination: most.append(len(held(work))))
    assert made == sum(KEYS, []) and whole(url, make, same)
    assert max(most) <= 3 and held(work) == [], "no more than three shards are here at any time"
    assert extract(url, work) == [] and whole(url, make, same)
    assert not RemoteFolder(url).size(remote_lock.FILE)


def test_a_new_disk_goes_on_from_the_url(extract, url, tmp_path, make, same):
    assert extract(url, tmp_path / "a", KEYS[:3]) == sum(KEYS[:3], [])
    shutil.rmtree(tmp_path / "a")
    assert extract(url, tmp_path / "b") == sum(KEYS[3:], []) and whole(url, make, same)


def test_failures_and_digests_of_shards_that_have_gone_are_read_at_the_url(extract, url, tmp_path):
    extract(url, tmp_path / "a", KEYS[:2])
    with Destination(url, tmp_path / "b") as destination:
        with StoreWriter(destination.path, destination=destination) as writer:
            assert [writer.states([key])[0] for key in ("f1", "0/0", "z")] == [
                Failure("f1", "empty", "of 1"), "record", None,
            ]  # fmt: skip
            assert len(writer.source_digest("0/1")) == 16


@pytest.mark.parametrize("disk", ["same", "new"])
@pytest.mark.parametrize("moment", range(8))
def test_killed_anywhere(extract, url, tmp_path, make, same, monkeypatch, moment, disk):
    """As a kill would, an error of each step of moving a shard leaves all as it is, lock and open shard included."""
    calls, steps = [], (RemoteFolder.upload, RemoteFolder.put, RemoteFolder.remove)

    class Killed(BaseException):
        pass

    def step(real):
        def run(self, name, *args, **options):
            if name == remote_lock.FILE:
                return real(self, name, *args, **options)
            calls.append(name)
            if len(calls) > 5 + moment:
                raise Killed
            return real(self, name, *args, **options)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(remote_lock.RemoteLock, "release", lambda lock: lock._ended.set())
        for real in steps:
            patch.setattr(RemoteFolder, real.__name__, step(real))
        with pytest.raises(Killed):
            extract(url, tmp_path / "work", KEYS[:5])
    there = manifest_at(RemoteFolder(url))
    assert there is None or verify(url).ok, "what is registered is whole"
    registered = {key for key in open_store(url)} if there else set()
    if disk == "new":
        shutil.rmtree(tmp_path / "work")
    made = extract(url, tmp_path / "work")
    assert not registered & set(made) and whole(url, make, same)
    if disk == "same":
        assert set(made) <= set(sum(KEYS[2:], [])), "what was committed here is not made again"


def test_a_network_that_fails_ends_the_job_which_goes_on_later(extract, url, tmp_path, monkeypatch, make, same):
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "upload", lambda self, name, *args: self._patiently(name, fail))
        with pytest.raises(StoreUnreachable, match="shard-00000.lmdb cannot be reached.*run the same line again"):
            extract(url, tmp_path / "work")
    assert held(tmp_path / "work"), "what was sealed is still here"
    made = extract(url, tmp_path / "work")
    assert not set(KEYS[0]) & set(made) and whole(url, make, same)


def fail(*args):
    raise TimeoutError("no answer")


def test_two_jobs_on_one_url(extract, url, tmp_path):
    with Destination(url, tmp_path / "a") as first:
        def beat():
            first._lock._beats += 1
            first._lock._folder.put(remote_lock.FILE, first._lock._content())

        real, tries = RemoteFolder.read, []

        def read(self, name, *args):
            if name == remote_lock.FILE:
                tries.append(name)
                beat()
            return real(self, name, *args)

        RemoteFolder.read = read
        try:
            with pytest.raises(StoreLocked, match=f"is being written by process {os.getpid()}"):
                extract(url, tmp_path / "b")
        finally:
            RemoteFolder.read = real
    assert tries and not (tmp_path / "b").exists()


def test_a_job_that_lost_its_lock_registers_nothing(extract, url, tmp_path):
    def lose(place, destination):
        if place == 1:
            destination.folder.put(remote_lock.FILE, b'{"token": "other", "pid": 1}')

    with pytest.raises(StoreLocked, match="was taken over by process 1"):
        extract(url, tmp_path / "a", after=lose)
    there = manifest_at(RemoteFolder(url))
    assert there is None or len(there.shards) <= 1


def test_working_folders_of_other_stores(extract, url, tmp_path):
    extract(url, tmp_path / "a", KEYS[:2])
    with pytest.raises(StoreMismatch, match="shard-00000.lmdb is neither in the working folder .* nor registered"):
        extract(url + "2", tmp_path / "a", KEYS[:2])
    shutil.copytree(tmp_path / "a", tmp_path / "old")
    extract(url, tmp_path / "a", KEYS[:3])
    with StoreWriter(tmp_path / "old", destination=None) as writer:
        writer.write([], [Failure("g", "empty", "m")])
    with pytest.raises(StoreMismatch, match="shard-00002 here is not the one there.*--work"):
        extract(url, tmp_path / "old")
    with StoreWriter(tmp_path / "other", "float32") as writer:
        writer.write([], [Failure("g", "empty", "m")])
    with pytest.raises(StoreMismatch, match="feature_dtype is 'float16' at .*, 'float32' here"):
        extract(url, tmp_path / "other")
    assert len(open_store(url)) == sum(map(len, KEYS[:3]))


def test_urls_that_are_no_destination(tmp_path, build):
    with pytest.raises(UsageError, match="only be read"):
        Destination("https://127.0.0.1/s.roi", tmp_path / "work")
    path = build("t.roi", ["a"])
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(UsageError, match="one place"):
        with Destination(f"file://{path}", tmp_path / "link"):
            pass
    assert len(open_store(path)) == 1
    path = build("s.roi", ["a"], open_last=True)
    with pytest.raises(StoreMismatch, match="written in place"):
        with Destination(f"file://{path}", tmp_path / "work"):
            pass
    assert not (path / remote_lock.FILE).exists()


def test_a_job_with_nothing_to_do_leaves_nothing(extract, url, tmp_path):
    extract(url, tmp_path / "a", [])
    with pytest.raises(StoreNotFound):
        open_store(url)


JOB = """
import sys, time
from cache import Failure, StoreWriter
from cache.destination import Destination
from tests.cache.conftest import make_regions

url, work, pause = sys.argv[1:]
with Destination(url, work) as destination:
    with StoreWriter(destination.path, "float32", destination=destination, shard_size=40_000) as writer:
        for start in range(0, 120, 4):
            keys = [f"k/{i}" for i in range(start, start + 4)]
            new = [key for key, state in zip(keys, writer.states(keys)) if state is None]
            if new:
                print("made", *new, flush=True)
                writer.write([make_regions(key, 4, 64) for key in new[1:]], [Failure(new[0], "empty", new[0])])
                time.sleep(float(pause))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments(tmp_path, repo_root, make, same, seed):
    """Up to 20 kills, the disk lost with some of them: nothing is lost, nothing twice, nothing half registered."""
    url, random = f"file://{tmp_path}/shared/s.roi", Random(seed)
    work, kills, kept = tmp_path / "work", 0, set()
    while True:
        line = [sys.executable, "-c", JOB, url, str(work), "0.03"]
        process = subprocess.Popen(line, cwd=repo_root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0, 0.4) if kills < 20 else None)
        killed = process.poll() is None
        process.kill()
        out, err = process.communicate()
        out = first + out
        made = {key for line in out.splitlines() for key in line.split()[1:]}
        assert killed or process.returncode == 0, err
        assert not kept & made, "what was registered is not made again"
        kills += killed
        if manifest_at(RemoteFolder(url)) is not None:
            assert verify(url).ok
            kept = set(open_store(url).keys()) | {failure.key for failure in open_store(url).failures()}
        if not killed:
            break
        if random.random() < 0.3:
            shutil.rmtree(work, ignore_errors=True)
    store = open_store(url)
    failed = [f"k/{i}" for i in range(0, 120, 4)]
    states = sum(shard.records + shard.failures for shard in store.manifest.shards)
    assert states == 120 and sorted(failure.key for failure in store.failures()) == sorted(failed)
    assert all(same(store[key], make(key, 4, 64)) for key in store.keys()) and len(store) == 90
