"""Reading a store in several processes and threads, and beside what changes it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from itertools import count

import pytest

from cache import Failure, MissingKeys, StoreNotFound, StoreWriter, open_store
from cache.environment import Environment


def test_readers_beside_a_writer_in_another_process(tmp_path, make, same):
    path = tmp_path / "s.roi"
    StoreWriter(path, "float32").close()
    store = open_store(path)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        with StoreWriter(path, "float32", shard_size=30_000) as writer:
            for i in range(60):
                writer.write([make(f"{i}")])
                os.write(into, b"%d\n" % i)
        os._exit(0)
    os.close(into)
    with open(out) as lines:
        for line in lines:
            key = line.strip()
            assert same(store[key], make(key)) and "0" in store and len(store) > int(key)
    assert os.waitpid(child, 0)[1] == 0
    store.refresh()
    assert len(store) == 60 and not store.manifest.open


# -- processes and threads


def read_all(store, keys):
    return {key: store[key].features.tobytes() for key in keys}


@pytest.mark.parametrize("open_last", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(build, repo_root, method, open_last, monkeypatch):
    path = build("s.roi", ["a", "b"], ["c"], open_last=open_last)
    store = open_store(path)
    expected = read_all(store, "abc")
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    if method == "fork":  # inherits the store object itself
        with multiprocessing.get_context("fork").Pool(3, initializer=_inherit, initargs=(store,)) as pool:
            assert pool.map(_read_inherited, ["abc"] * 12) == [expected] * 12
    else:
        code = "import pickle, sys; store = pickle.load(sys.stdin.buffer)\n"
        code += "sys.stdout.buffer.write(pickle.dumps({k: store[k].features.tobytes() for k in 'abc'}))"
        run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(store), capture_output=True, check=True)
        assert pickle.loads(run.stdout) == expected
    assert read_all(store, "abc") == expected


_inherited = None


def _inherit(store):
    global _inherited
    _inherited = store


def _read_inherited(keys):
    return read_all(_inherited, keys)


def test_pickled_in_another_directory(build, tmp_path, monkeypatch):
    build("s.roi", ["a"])
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(open_store("s.roi"))
    regions = pickle.dumps(open_store("s.roi")["a"])
    monkeypatch.chdir("/")
    assert pickle.loads(data)["a"].key == "a" and pickle.loads(regions).key == "a"


def test_threads(build):
    store = open_store(build("s.roi", list("abcdef"), list("ghij"), open_last=True))
    expected, wrong = read_all(store, "abcdefghij"), []

    def work():
        for _ in range(30):
            if read_all(store, "abcdefghij") != expected or len(store) != 10:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_a_read_only_directory(build, tmp_path):
    path = build("s.roi", ["a"], ["b"], open_last=True)
    for lock in path.glob("*-lock"):
        lock.unlink()
    target = tmp_path / "mounted"
    target.mkdir()
    if subprocess.run(["mount", "--bind", str(path), str(target)], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        store = open_store(target)
        assert sorted(store.keys()) == ["a", "b"] and store["b"].key == "b" and store["a"].key == "a"
        assert sorted(p.name for p in target.iterdir()) == sorted(p.name for p in path.iterdir())
        del store
        gc.collect()
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


@pytest.mark.parametrize("open_last", [False, True])
def test_a_store_that_is_moved_under_a_reader(build, tmp_path, make, same, open_last):
    path, moved = build("s.roi", ["a"], ["b"], open_last=open_last), tmp_path / "a new name.roi"
    old = open_store(path)
    assert old["a"].key == "a" and old["b"].key == "b"
    path.rename(moved)
    if not open_last:
        assert old["a"].key == "a"  # what is mapped stays
    with pytest.raises(StoreNotFound, match=str(path)):
        old.get("c")
    store = open_store(moved)
    assert all(same(store[key], make(key)) for key in "ab")
    with StoreWriter(moved, "float32") as writer:
        writer.write([make("c")])
    assert sorted(open_store(str(tmp_path / "a new*")).keys()) == ["a", "b", "c"]


# -- readers beside a writer of the same process, which seals what they read


@pytest.mark.parametrize("use", [
    lambda store: list(store.keys()), lambda store: list(store.failures()), len, lambda store: store.get("zzz"),
    lambda store: pytest.raises(MissingKeys, store.__getitem__, "zzz"), lambda store: "a" in store,
    lambda store: str(pytest.raises(MissingKeys, store.location, "zzz").value),
])  # fmt: skip
def test_a_shard_that_is_sealed_under_a_reader(tmp_path, make, monkeypatch, use):
    """The writer seals at every moment that a reader may be at."""
    writer = StoreWriter(tmp_path / "s.roi", "float32")
    writer.write([make("a")], [Failure("f", "empty", "m")])
    store, read, reads, seal_at = open_store(tmp_path / "s.roi"), Environment.read, count(), -1

    def seal_before(self):
        if next(reads) == seal_at:
            writer.seal()
        return read(self)

    monkeypatch.setattr(Environment, "read", seal_before)
    for step in range(6):
        writer.write([make(f"b{step}")])
        store.refresh()
        reads, seal_at = count(), step
        use(store)
        seal_at = -1
    assert "b5" in store
    writer.close()


def test_threads_beside_a_writer(tmp_path, make):
    path, stop, errors = tmp_path / "s.roi", threading.Event(), []
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a")], [Failure("f", "empty", "m")])
        store = open_store(path)

        def work(look):
            try:
                while not stop.is_set():
                    look()
            except Exception as error:
                errors.append(error)

        looks = (
            lambda: list(store.keys()),
            lambda: list(store.failures()),
            lambda: str(pytest.raises(MissingKeys, store.__getitem__, "zzz").value),
        )
        threads = [threading.Thread(target=work, args=(look,)) for look in looks]
        [thread.start() for thread in threads]
        for i in range(25):
            writer.write([make(f"{i}")])
            writer.seal()
        stop.set()
        [thread.join() for thread in threads]
    assert not errors and len(open_store(path)) == 26


def test_a_shard_that_is_sealed_while_keys_are_listed(tmp_path, make):
    writers = [StoreWriter(tmp_path / name, "float32") for name in ("1.roi", "2.roi")]
    for writer, keys in zip(writers, ("ab", "cd"), strict=True):
        writer.write([make(key) for key in keys])
    keys = open_store([writer.path for writer in writers]).keys()
    first = next(keys)
    for writer in reversed(writers):
        writer.seal()
    assert sorted([first, *keys]) == ["a", "b", "c", "d"]
    [writer.close() for writer in writers]


# -- targets
