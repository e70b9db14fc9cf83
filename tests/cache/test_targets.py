from __future__ import annotations

import shutil

import pytest

from cache import StoreNotFound, StoreWriter, UsageError
from cache.targets import absolute, parts_of, resolve_targets


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
    with pytest.raises(UsageError):
        absolute([])


def test_urls_are_stores_or_shards_of_them():
    urls = ["https://me:pw@host/a.roi/?sig=s", "s3://bucket/b.roi/shard-00003.lmdb", "s3://bucket/b.roi/shard-x.lmdb"]
    parts = resolve_targets(absolute([*urls, "s3://bucket/b.roi/shard-00004.lmdb"]))
    assert [(str(folder), chosen) for folder, chosen in parts] == [
        ("https://host/a.roi", None),
        ("s3://bucket/b.roi", frozenset({3, 4})),
        ("s3://bucket/b.roi/shard-x.lmdb", None),
    ]
    whole = resolve_targets(["s3://bucket/b.roi/shard-00003.lmdb", "s3://bucket/b.roi"])
    assert [chosen for _, chosen in whole] == [None]
    folder = parts[0][0]
    assert folder.address("manifest.json") == "https://me:pw@host/a.roi/manifest.json?sig=s"
    for place, chosen in ((folder, None), (folder, ["shard-00003.lmdb"])):
        assert [str(found) for found, _ in resolve_targets(parts_of(place, chosen))] == ["https://host/a.roi"]


@pytest.mark.parametrize("url", ["s3://", "file:///", "s3://b/*.roi", "https://h/../a.roi", "simplecache::s3://b/a.roi"])
def test_urls_that_are_no_stores(url):
    with pytest.raises(UsageError):
        resolve_targets(absolute(url))


@pytest.mark.parametrize("url", ["grpc://[::1]:5/photos", "grpc+tls://[2001:db8::7]:5"])
def test_servers_may_have_ipv6_addresses(url):
    ((folder, shards),) = resolve_targets(absolute(url))
    assert str(folder) == url and shards is None


@pytest.mark.parametrize("name", ["shard-00007.lmdb", "x.lmdb"])
def test_a_file_that_the_manifest_does_not_list_is_no_shard(store, name):
    shutil.copy(store / "shard-00000.lmdb", store / name)
    with pytest.raises(StoreNotFound, match=f"{name} is not a shard of the store: .*manifest.json"):
        resolve_targets([str(store / name)])


@pytest.mark.parametrize("target", [5, None, [5], [None, "a"]])
def test_what_is_no_path(target):
    with pytest.raises(UsageError, match="neither the path"):
        absolute(target)
