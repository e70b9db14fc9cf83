"""Writers that a full disk or a kill ends: what is committed stays, and the next one goes on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from cache import DiskError, StoreWriter, WriteResult, open_store
from cache.environment import LOCK_SUFFIX
from cache.manifest import Manifest
from cache.verify import digest, verify
from tests.cache.told import failed, keys, states

# -- disks


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(small_disk, make, same):
    path = small_disk / "a.roi"
    done = []
    writer = StoreWriter(path, "float32", shard_size=400_000)
    with pytest.raises(DiskError, match=rf"the disk at {small_disk} is full .*bytes free.*run the same line") as error:
        for i in range(10_000):
            writer.write([make(f"{i}", n=10, d=100)])
            done.append(f"{i}")
    assert error.value.exit_code == 74 and len(done) > 100
    assert keys(path) == sorted(done)
    with pytest.raises(DiskError):
        for i in range(100):
            writer.write([make(f"again{i}", n=10, d=100)])
            done.append(f"again{i}")
    with suppress(DiskError):  # the index of the last shard may just fit
        writer.close()
    assert verify(path).problems == [] and keys(path) == sorted(done)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    with StoreWriter(path, "float32") as writer:
        assert writer.states(done) == ["record"] * len(done)
        writer.write([make("more", n=10, d=100)])
    assert verify(path).ok and keys(path) == sorted([*done, "more"])
    store = open_store(path)
    assert all(same(store[key], make(key, n=10, d=100)) for key in done)


def test_a_disk_without_room_for_a_store(small_disk):
    (small_disk / "filler").write_bytes(bytes(3 << 20))
    with pytest.raises(DiskError, match=str(small_disk)):
        StoreWriter(small_disk / "a.roi")


@pytest.mark.parametrize("step", ["index.idx", "shard-00000.idx", "manifest.json"])
def test_a_disk_that_fails_while_sealing(tmp_path, make, monkeypatch, step):
    """Each file of a seal in turn cannot be written: what is committed stays, and the next try succeeds."""
    path = tmp_path / "a.roi"
    writer = StoreWriter(path, "float32")
    writer.write([make("a")])
    reader = open_store(path)
    assert reader["a"].key == "a"
    replace = os.replace

    def fail(source, target):
        if Path(target).name == step:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DiskError, match="fails"):
        writer.seal()
    assert reader["a"].key == "a" and keys(path) == ["a"] and verify(path).problems == []
    monkeypatch.undo()
    assert writer.write([make("b")]) == WriteResult(1, 0, 0)
    assert reader["b"].key == "b"
    writer.close()
    assert keys(path) == ["a", "b"] and verify(path).ok and not list(path.glob("*.tmp"))


# -- kills


def write_all(path: Path, make, count: int, say) -> None:
    """What the killed child does: continue the store, a unit a transaction, shards of a few units."""
    with StoreWriter(path, "float16", {"x": 1}, shard_size=40_000) as writer:
        found = writer.states([f"key/{i}" for i in range(count)])
        todo = [i for i, state in enumerate(found) if state is None]
        for start in range(0, len(todo), 4):
            unit = todo[start : start + 4]
            records = [make(f"key/{i}", d=40) for i in unit if i % 7]
            failures = [failed(f"key/{i}") for i in unit if i % 7 == 0]
            assert writer.write(records, failures) == WriteResult(len(records), 0, len(failures))
            say(unit)


def write_until_killed(path: Path, make, count: int, units: int, delay: float) -> set[int]:
    """Kill a child `delay` seconds after it has committed some units; what it said to have committed."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        try:
            write_all(path, make, count, lambda unit: os.write(into, (json.dumps(unit) + "\n").encode()))
        finally:
            os._exit(0)
    os.close(into)
    with open(out) as lines:
        told = list(islice(lines, units))
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        told += lines
    os.waitpid(child, 0)
    return {i for line in told if line.endswith("]\n") for i in json.loads(line)}


def check_kills(tmp_path: Path, make, rounds: int, seed: int, count: int) -> None:
    rng = random.Random(seed)
    path, committed = tmp_path / "killed.roi", set()
    for _ in range(rounds):
        committed |= write_until_killed(path, make, count, rng.randint(0, count // 3 // rounds), rng.uniform(0, 0.05))
        if (path / "manifest.json").exists():
            assert committed <= {int(key[4:]) for key in states(path)}
            if Manifest.load(path).open == ():
                assert verify(path).problems == []
    write_all(path, make, count, lambda unit: None)
    assert {int(key[4:]) for key in states(path)} == set(range(count))
    whole = tmp_path / "whole.roi"
    write_all(whole, make, count, lambda unit: None)
    assert digest(path) == digest(whole) and states(path) == states(whole)
    manifest = Manifest.load(path)
    assert sum(s.records + s.failures for s in manifest.shards) == count and not manifest.open
    files = {name for s in manifest.shards for name in (s.file, s.index_file)}
    assert set(os.listdir(path)) == {"manifest.json", "index.idx", *files} and verify(path).ok


def test_killed_writers(tmp_path, make):
    check_kills(tmp_path, make, rounds=20, seed=0, count=400)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_writers_often(tmp_path, make, seed):
    check_kills(tmp_path, make, rounds=40, seed=seed, count=1200)


class Killed(BaseException):
    pass


def test_a_kill_at_every_step_of_the_file_system(tmp_path, make, monkeypatch):
    """Stop a writer for good before each of its renames, removals and syncs in turn; the next one must go on."""
    source = tmp_path / "source.roi"
    with pytest.raises(RuntimeError), StoreWriter(source, "float32") as writer:
        writer.write([make("a")])
        writer.seal()
        writer.write([make("b")], [failed("c")])
        raise RuntimeError
    expected = {"a": "record", "b": "record", "c": "missing"}
    step, finished = 0, False
    while not finished:
        step += 1
        path = tmp_path / f"{step}.roi"
        shutil.copytree(source, path)
        with monkeypatch.context() as patch:
            finished = stop_at(patch, step, lambda p=path: StoreWriter(p, "float32").close())
        assert states(path) == expected and verify(path).problems == []
        with StoreWriter(path, "float32") as writer:
            assert writer.write([make("b"), make("d")], [failed("c")], "drop") == WriteResult(1, 1, 1)
        assert states(path) == {**expected, "d": "record"} and verify(path).ok
        assert not [name for name in os.listdir(path) if name.endswith((".tmp", LOCK_SUFFIX, ".lock"))]
        shutil.rmtree(path)
    assert step > 10


def stop_at(patch, step: int, run) -> bool:
    """Run until the step-th change of the file system; whether it ended before."""
    count = [0]

    def counted(function):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] >= step:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in ((os, "replace"), (os, "fsync"), (os, "ftruncate"), (Path, "unlink"), (os, "posix_fallocate")):
        patch.setattr(owner, name, counted(getattr(owner, name)))
    try:
        run()
        return True
    except Killed:
        return False
