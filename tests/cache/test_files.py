from __future__ import annotations

import errno
import os
from pathlib import Path

import lmdb
import pytest

from cache import DiskError
from cache.files import disk_errors, mount_point, replace_file


def test_replace(tmp_path):
    path = tmp_path / "f"
    for content in (b"one", b"two"):
        replace_file(path, content[:1], memoryview(content[1:]))
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f"
    replace_file(path, b"old")

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "bad"), lmdb.DiskError("x: No space left on device"),
    lmdb.Error("mdb_txn_commit: Input/output error"), lmdb.Error("mdb_txn_commit: File too large"),
])  # fmt: skip
def test_disk_errors_name_the_disk_and_what_is_free(tmp_path, error):
    with pytest.raises(DiskError, match=rf"the disk at {mount_point(tmp_path)} .*bytes free.*{tmp_path}") as caught:
        with disk_errors(tmp_path / "f"):
            raise error
    assert caught.value.exit_code == 74


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone"), lmdb.MapFullError("full"), ValueError("x")])
def test_other_errors_pass(tmp_path, error):
    with pytest.raises(type(error)):
        with disk_errors(tmp_path):
            raise error


def test_mount_point_of_a_path_that_does_not_exist_yet(tmp_path):
    assert mount_point(tmp_path / "a" / "b") == mount_point(tmp_path)
    assert os.path.ismount(mount_point(Path("/proc/self")))
