from __future__ import annotations

import pytest

from cache import StoreDamaged, StoreWriter, UsageError, environment, open_store
from cache.environment import Environment
from cache.manifest import Manifest


@pytest.fixture
def store(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        writer.write([make("a")])
    return path


def test_directories_that_are_no_store(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file"):
            StoreWriter(path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.jpg").write_text("")
    with pytest.raises(UsageError, match="'x.jpg'.*empty directory"):
        StoreWriter(tmp_path / "photos")
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["x.jpg"]


def test_parents_are_made(tmp_path):
    StoreWriter(tmp_path / "x" / "y" / "a.roi").close()
    assert len(open_store(tmp_path / "x" / "y" / "a.roi")) == 0


def test_a_killed_creation(tmp_path):
    path = tmp_path / "a.roi"
    path.mkdir()
    (path / "writer.lock").write_text("{}")
    (path / "manifest.json.tmp").write_text("{")
    StoreWriter(path).close()
    assert [p.name for p in path.iterdir()] == ["manifest.json"]


def test_a_lost_manifest_is_not_a_new_store(store):
    (store / "manifest.json").unlink()
    with pytest.raises(StoreDamaged, match="manifest is missing"):
        StoreWriter(store)


@pytest.mark.parametrize("name", [
    "manifest.json.tmp", "index.idx.tmp", "shard-00001.lmdb.tmp", "shard-00001.lmdb.tmp-lock", "shard-00001.idx.tmp",
    "shard-00000.lmdb-lock", "shard-00001.lmdb-lock", "shard-00001.idx",
])  # fmt: skip
def test_leftovers_are_swept(store, name):
    before = sorted(p.name for p in store.iterdir())
    (store / name).write_bytes(b"x")
    StoreWriter(store).close()
    assert sorted(p.name for p in store.iterdir()) == before


def test_files_of_others_stay(store):
    (store / "README.txt").write_text("x")
    StoreWriter(store).close()
    assert (store / "README.txt").exists()


def test_shards_that_the_manifest_does_not_know(store):
    environment.create(store / "shard-00001.lmdb")
    StoreWriter(store).close()
    assert not (store / "shard-00001.lmdb").exists()

    environment.create(store / "shard-00001.lmdb")
    opened = Environment.acquire(store / "shard-00001.lmdb", writable=True)
    opened.write(lambda view: view.put(b"x", 0, b""))
    opened.release(writable=True)
    with pytest.raises(StoreDamaged, match="does not know.*move it"):
        StoreWriter(store)
    assert (store / "shard-00001.lmdb").exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_a_damaged_or_missing_merged_index_is_built_anew(store, make, damage):
    merged = store / "index.idx"
    if damage is None:
        merged.unlink()
    else:
        merged.write_bytes(damage)
        with pytest.raises(StoreDamaged, match="index.idx.*delete it"):
            open_store(store)
    with StoreWriter(store) as writer:
        writer.write([make("b")])
    assert sorted(open_store(store).keys()) == ["a", "b"] and merged.exists()


def test_a_merged_index_of_another_store_is_not_believed(store, tmp_path, make):
    with StoreWriter(tmp_path / "b.roi") as writer:
        writer.write([make("stranger")])
    (store / "index.idx").write_bytes((tmp_path / "b.roi" / "index.idx").read_bytes())
    assert list(open_store(store).keys()) == ["a"]
    StoreWriter(store).close()
    assert list(open_store(store).keys()) == ["a"] and "stranger" not in open_store(store)


def test_a_missing_open_shard_is_damage(tmp_path, make):
    path = tmp_path / "a.roi"
    with pytest.raises(RuntimeError), StoreWriter(path) as writer:
        writer.write([make("a")])
        raise RuntimeError
    (path / "shard-00000.lmdb").unlink()
    for use in (StoreWriter, open_store):
        with pytest.raises(StoreDamaged, match="shard-00000.lmdb: the open shard is missing"):
            use(path)
    assert len(Manifest.load(path).open) == 1


def test_an_open_shard_beyond_the_size_is_sealed_at_once(tmp_path, make):
    path = tmp_path / "a.roi"
    with pytest.raises(RuntimeError), StoreWriter(path) as writer:
        writer.write([make("a")])
        raise RuntimeError
    with StoreWriter(path, shard_size=1) as writer:
        assert writer.manifest.sealed and not writer.manifest.open


def test_an_empty_store_keeps_what_a_writer_does_not_name(tmp_path):
    path = tmp_path / "a.roi"
    StoreWriter(path, fingerprint={"model": "m"}, vocabularies={"classes": ["c"]}).close()
    for again in ({}, {"fingerprint": {"model": "n"}}, {"vocabularies": {"classes": ["d"]}}):
        StoreWriter(path, **again).close()
        manifest = Manifest.load(path)
        assert manifest.fingerprint == {"model": "n" if again else "m"}
        assert manifest.vocabularies == {"classes": ["d" if "vocabularies" in again else "c"]}
