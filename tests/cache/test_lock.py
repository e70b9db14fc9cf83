from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from cache import DiskError, StoreLocked
from cache.lock import FILE, WriterLock


def test_the_second_is_refused_and_told_who_holds_it(tmp_path):
    lock = WriterLock(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()} on .*started.*run the same line again") as error:
        WriterLock(tmp_path)
    assert error.value.exit_code == 75
    lock.release()
    assert not (tmp_path / FILE).exists()
    WriterLock(tmp_path).release()


def hold_in_child(path, repo_root) -> subprocess.Popen:
    code = "import sys; from pathlib import Path; from cache.lock import WriterLock\n"
    code += "lock = WriterLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=repo_root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"held\n"
    return child


def test_a_dead_holder_is_no_obstacle(tmp_path, repo_root):
    child = hold_in_child(tmp_path, repo_root)
    with pytest.raises(StoreLocked, match=f"process {child.pid}"):
        WriterLock(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (tmp_path / FILE).exists()
    WriterLock(tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'{"pid": 3}'])
def test_unreadable_holder_information(tmp_path, content):
    lock = WriterLock(tmp_path)
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(StoreLocked, match="another process"):
        WriterLock(tmp_path)
    lock.release()


def test_forked_children_do_not_hold_it(tmp_path):
    lock = WriterLock(tmp_path)
    wake, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        lock.release()  # of no effect: the parent still holds it
        os.read(wake, 1)  # outlives the parent's release
        os._exit(0)
    with pytest.raises(StoreLocked):
        WriterLock(tmp_path)
    lock.release()
    WriterLock(tmp_path).release()
    os.close(go)
    os.waitpid(child, 0)
    os.close(wake)


def test_a_dropped_lock_is_free(tmp_path):
    lock = WriterLock(tmp_path)
    del lock
    WriterLock(tmp_path).release()


def test_a_file_that_its_holder_removes_meanwhile(tmp_path, monkeypatch):
    """Between our open and our lock the holder may remove the file: the lock must be on the file that is there."""
    first = WriterLock(tmp_path)
    flock = fcntl.flock

    def release_first(fd, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        first.release()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", release_first)
    second = WriterLock(tmp_path)
    with pytest.raises(StoreLocked):
        WriterLock(tmp_path)
    second.release()


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def unsupported(fd, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(DiskError, match="no file locks.*local disk"):
        WriterLock(tmp_path)
