from __future__ import annotations

import shutil

import pytest

from cache import StoreNotFound, StoreWriter, UsageError
from cache.targets import absolute, resolve_targets


@pytest.fixture
def store(tmp_path, make):
    with StoreWriter(tmp_path / "a.roi") as writer:
        for key in "ab":
            writer.write([make(key)])
            writer.seal()
    return tmp_path / "a.roi"


def test_targets(store, monkeypatch):
    monkeypatch.chdir(store.parent)
    assert resolve_targets(absolute("a.roi")) == resolve_targets(absolute("*.roi")) == [(store, None)]
    assert resolve_targets([str(store / "shard-00001.lmdb")]) == [(store, frozenset({1}))]
    assert resolve_targets([str(store / "*.lmdb")]) == [(store, frozenset({0, 1}))]
    assert resolve_targets([str(store), str(store / "shard-00001.lmdb")]) == [(store, None)]
    for wrong in ([], "s3://x/a.roi"):
        with pytest.raises(UsageError):
            absolute(wrong)


@pytest.mark.parametrize("name", ["shard-00007.lmdb", "x.lmdb"])
def test_a_file_that_the_manifest_does_not_list_is_no_shard(store, name):
    shutil.copy(store / "shard-00000.lmdb", store / name)
    with pytest.raises(StoreNotFound, match=f"{name} is not a shard of the store: .*manifest.json"):
        resolve_targets([str(store / name)])
