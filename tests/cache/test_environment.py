from __future__ import annotations

import os
import resource
import subprocess
import threading
import time

import lmdb
import pytest

from cache import DiskError, StoreDamaged, environment
from cache.environment import LOCK_SUFFIX, Environment, create
from cache.states import FAILURE, REPLACED


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "shard-00000.lmdb"
    create(path)
    return path


@pytest.fixture
def writer(path):
    opened = Environment.acquire(path, writable=True)
    yield opened
    opened.release(writable=True)


def put(opened: Environment, states: dict[bytes, tuple[int, bytes]]) -> None:
    opened.write(lambda view: [view.put(key, flags, value) for key, (flags, value) in states.items()])


def read(opened: Environment) -> dict[bytes, tuple[int, bytes]]:
    with opened.read() as view:
        states = {key: (flags, bytes(view.value(key, flags))) for key, flags in view.keys()}
        assert len(view) == len(states) and all(view.flags(key) == flags for key, (flags, _) in states.items())
        return states


def run_in_fork(check) -> None:
    """Run `check` in a forked child; fail when it does."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_one_state_a_key(writer):
    put(writer, {b"a": (0, b"1"), b"b": (FAILURE, b"2")})
    assert read(writer) == {b"a": (0, b"1"), b"b": (FAILURE, b"2")}
    put(writer, {b"a": (FAILURE | REPLACED, b"3"), b"b": (0, b"4")})
    assert read(writer) == {b"a": (FAILURE | REPLACED, b"3"), b"b": (0, b"4")}
    with writer.read() as view:
        assert view.flags(b"c") is None


def test_users_share_one_environment(path, writer):
    link = path.with_name("link")
    link.symlink_to(path)
    reader = Environment.acquire(link)
    assert reader is writer
    with reader.read() as view:
        version = view.version
    put(writer, {b"a": (0, b"1")})
    assert read(reader) == {b"a": (0, b"1")}
    with reader.read() as view:
        assert view.version > version
    reader.release()
    put(writer, {b"b": (0, b"2")})


def test_a_reader_first_a_writer_later(path):
    reader = Environment.acquire(path)
    assert read(reader) == {}
    writer = Environment.acquire(path, writable=True)
    put(writer, {b"a": (0, b"1")})
    writer.release(writable=True)
    assert read(reader) == {b"a": (0, b"1")}
    with pytest.raises(lmdb.ReadonlyError):
        put(reader, {b"b": (0, b"2")})
    reader.release()


def test_retired_for_everyone(path, writer):
    reader = Environment.acquire(path)
    writer.retire()
    with pytest.raises(FileNotFoundError):
        read(reader)
    again = Environment.acquire(path)
    assert again is not reader and read(again) == {}
    reader.release()
    assert read(again) == {}
    again.release()


def test_another_file_of_the_same_name(path, writer):
    put(writer, {b"a": (0, b"1")})
    path.unlink()
    create(path)
    other = Environment.acquire(path)
    assert other is not writer and read(other) == {}
    with pytest.raises(FileNotFoundError):
        read(writer)
    other.release()


def test_the_map_grows_and_the_transaction_runs_again(path, monkeypatch):
    monkeypatch.setattr(environment, "MAP_SLACK", 1 << 20)
    writer = Environment.acquire(path, writable=True)
    runs = []

    def fill(view):
        runs.append(1)
        for i in range(1000):
            view.put(b"%d" % i, 0, b"%d" % i * 2048)

    writer.write(fill)
    assert len(runs) > 1
    assert read(writer) == {b"%d" % i: (0, b"%d" % i * 2048) for i in range(1000)}
    writer.release(writable=True)


def test_a_map_that_another_process_grew(path, monkeypatch):
    monkeypatch.setattr(environment, "MAP_SLACK", 1 << 20)
    reader = Environment.acquire(path)
    assert read(reader) == {}

    def grow():
        writer = Environment.acquire(path, writable=True)
        put(writer, {b"%d" % i: (0, bytes(5000)) for i in range(1000)})

    run_in_fork(grow)
    assert len(read(reader)) == 1000
    reader.release()


def test_forked_children_open_it_anew(writer):
    put(writer, {b"a": (0, b"1")})
    assert len(read(writer)) == 1
    run_in_fork(lambda: [read(writer) == {b"a": (0, b"1")} or os._exit(2) for _ in range(3)])
    put(writer, {b"b": (0, b"2")})
    assert len(read(writer)) == 2


def test_forked_children_see_later_commits_and_leave_the_parent_alone(writer):
    wake, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(wake, 1)
        os._exit(0 if b"late" in read(writer) else 1)
    put(writer, {b"late": (0, b"1")})
    assert len(read(writer)) == 1
    os.write(go, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(wake), os.close(go)
    put(writer, {b"later": (0, b"1")})
    assert len(read(writer)) == 2


def test_forks_while_threads_read_and_write(writer):
    """A fork between the steps of a transaction would leave the child with a lock that nobody gives back."""
    stop, errors = threading.Event(), []

    def work(step):
        try:
            while not stop.is_set():
                step()
        except Exception as error:
            errors.append(error)

    counter = iter(range(10**9))
    steps = (lambda: put(writer, {b"%d" % next(counter): (0, bytes(3000))}), lambda: read(writer))
    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            run_in_fork(lambda: read(writer))
            time.sleep(0.005)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors and len(read(writer)) == next(counter)


def test_no_lock_file_can_be_had(path, writer, monkeypatch):
    put(writer, {b"a": (0, b"1")})
    writer.reset()

    def refuse(path):
        raise PermissionError(13, "no")

    monkeypatch.setattr(environment, "_reserve_lock_file", refuse)
    with pytest.raises(PermissionError):
        put(writer, {b"b": (0, b"1")})
    writer._writable = False
    assert read(writer) == {b"a": (0, b"1")} and writer.lockless


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 8192, bytes(4096), bytes(20000)])
def test_files_that_are_not_lmdb(path, content):
    path.write_bytes(content)
    opened = Environment.acquire(path)
    with pytest.raises(StoreDamaged, match=str(path)):
        read(opened)
    opened.release()


@pytest.mark.parametrize("cut", [1, 10**9])
def test_cut_files_raise_and_do_not_kill(path, cut):
    writer = Environment.acquire(path, writable=True)
    put(writer, {b"%d" % i: (0, bytes([i]) * 5000) for i in range(20)})
    writer.release(writable=True)
    os.truncate(path, max(8192, os.path.getsize(path) - cut))
    opened = Environment.acquire(path)
    with pytest.raises(StoreDamaged, match="was cut to"):
        read(opened)
    opened.release()


def test_missing_pages_that_nobody_uses_do_not_matter(path, writer, monkeypatch):
    put(writer, {b"a": (FAILURE, b"{}")})
    size = environment._data_size
    monkeypatch.setattr(environment, "_data_size", lambda env: size(env) + 4096)
    writer.reset()
    assert read(writer) == {b"a": (FAILURE, b"{}")}


def test_after_a_failed_write_the_next_one_works(writer):
    put(writer, {b"a": (0, b"1")})

    def fail(view):
        view.put(b"b", 0, b"2")
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    with pytest.raises(DiskError, match="fails"):
        writer.write(fail)
    assert read(writer) == {b"a": (0, b"1")}
    put(writer, {b"c": (0, b"3")})
    assert sorted(read(writer)) == [b"a", b"c"]


def test_a_file_system_that_lmdb_cannot_use(path, monkeypatch):
    def refuse(*args, **kwargs):
        raise lmdb.Error("mdb_env_open: Function not implemented")

    monkeypatch.setattr(lmdb, "open", refuse)
    opened = Environment.acquire(path)
    with pytest.raises(DiskError, match=f"{path}.*local disk"):
        read(opened)
    opened.release()
    with pytest.raises(DiskError, match="local disk"):
        create(path)


def test_creation_leaves_nothing_behind(path, tmp_path):
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    Environment.acquire(path).release()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    opened = Environment.acquire(path)
    read(opened)
    opened.release()
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, path.name + LOCK_SUFFIX]


def test_a_read_only_directory(path, tmp_path, writer):
    put(writer, {b"a": (0, b"1")})
    writer.reset()
    path.with_name(path.name + LOCK_SUFFIX).unlink()
    target = tmp_path / "mounted"
    target.mkdir()
    mounted = subprocess.run(["mount", "-o", "bind,ro", str(tmp_path), str(target)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True, capture_output=True)
        with pytest.raises(OSError):
            (target / "x").touch()
        run_in_fork(lambda: read_only(target / path.name))
    finally:
        subprocess.run(["umount", str(target)], check=True)


def read_only(path) -> None:
    opened = Environment.acquire(path)
    assert read(opened) == {b"a": (0, b"1")} and opened.lockless


def test_a_system_that_cannot_reserve_space_in_a_file(path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    opened = Environment.acquire(path, writable=True)
    put(opened, {b"a": (0, b"1")})
    assert read(opened) == {b"a": (0, b"1")}
    opened.release(writable=True)
    lock = path.with_name(path.name + LOCK_SUFFIX)
    assert lock.stat().st_size >= (environment.MAX_READERS + 1) * 64


def limited(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))


def address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("map_size", [10 << 30, 1 << 62, 1 << 70])
def test_a_map_that_does_not_fit_into_the_address_space_grows_instead(path, map_size, monkeypatch):
    monkeypatch.setattr(environment, "MAP_SLACK", 1 << 20)

    def check():
        limited(address_space() + (1 << 30))
        opened = Environment.acquire(path, writable=True, map_size=map_size)
        put(opened, {b"%d" % i: (0, bytes(5000)) for i in range(1000)})
        assert len(read(opened)) == 1000

    run_in_fork(check)


def test_the_limit_is_named_when_no_map_fits(path, monkeypatch):
    monkeypatch.setattr(environment, "MAP_SLACK", 1 << 20)

    def check():
        opened = Environment.acquire(path, writable=True)
        put(opened, {b"a": (0, b"1")})
        value = bytes(50_000)
        limited(limit := address_space() + (24 << 20))
        for _ in range(2):
            with pytest.raises(DiskError, match=f"{path}.*limited to {limit:,} bytes.*--shard-size"):
                put(opened, dict.fromkeys((b"%d" % i for i in range(1000)), (0, value)))
            assert read(opened) == {b"a": (0, b"1")}
        opened.reset()
        monkeypatch.setattr(environment, "MAP_SLACK", 1 << 40)
        opened._map_size = 1 << 40
        for use in (lambda: read(opened), lambda: create(path.with_name("b"))):
            with pytest.raises(DiskError, match="limited to"):
                use()

    run_in_fork(check)


def test_a_file_that_a_writer_elsewhere_grows_is_not_taken_for_cut(path, monkeypatch):
    size, asked = environment._data_size, []

    def grown_meanwhile(env):
        os.truncate(path, size(env) + (1 << 20))
        return size(env) + (1 << 20)

    monkeypatch.setattr(environment, "_data_size", grown_meanwhile)
    monkeypatch.setattr(environment, "probe", asked.append)
    opened = Environment.acquire(path)
    assert read(opened) == {} and not asked
    opened.release()
