"""Records found again without a lookup are those that a lookup finds."""

import pickle

import numpy as np
import pytest

from cache import CorruptRecord, StoreWriter, open_store
from cache.dataset import RegionDataset
from cache.mapped import MappedRecords

KEYS = [f"image {i}" for i in range(20)]


@pytest.fixture(params=["float16", "float32", "bfloat16"])
def path(tmp_path, make, request):
    """Two sealed shards; one image has no regions."""
    with StoreWriter(tmp_path / "a.roi", request.param) as writer:
        for start in (0, 12):
            writer.write([make(key, n=i % 5) for i, key in enumerate(KEYS[start : start + 12], start)])
            writer.seal()
    return tmp_path / "a.roi"


def assert_same(ours, wanted):
    assert ours.keys == [item.key for item in wanted]
    assert list(zip(*ours.shapes, strict=True)) == [(r.width, r.height, *r.features.shape) for r in wanted]
    for name in ("boxes", "features"):
        for x, item in zip(getattr(ours, name), wanted, strict=True):
            y = getattr(item, name).reshape(-1)
            assert x.dtype == y.dtype and np.array_equal(x, y) and not x.flags.writeable


def test_second_read_equals_the_first(path):
    store = open_store(path)
    records = MappedRecords(store, KEYS)
    for indices in ([3, 17, 3, 0], [17, 0], list(range(20)), [5, 12]):
        assert_same(records.get_many(indices), store.get_many([KEYS[i] for i in indices]))
    store.get_many = None  # what was read once is not looked up again
    assert_same(records.get_many(range(20)), open_store(path).get_many(KEYS))
    assert np.shares_memory(records.get_many([4]).features[0], open_store(path)[KEYS[4]].features)  # views, not copies


def test_is_pickled_without_its_memory(path):
    records = MappedRecords(open_store(path), KEYS)
    records.get_many(range(20))
    assert len(pickle.dumps(records)) < 2000
    assert_same(pickle.loads(pickle.dumps(records)).get_many([2]), open_store(path).get_many(KEYS[2:3]))


def test_arrays_outlive_the_store(path):
    records = MappedRecords(open_store(path), KEYS)
    records.get_many([7])
    features = records.get_many([7]).features[0]
    del records
    assert np.array_equal(features, open_store(path)[KEYS[7]].features.reshape(-1))


def test_open_shards_and_a_refresh(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        writer.write([make(key) for key in KEYS])
        store = open_store(path)
        records = MappedRecords(store, KEYS)
        first = records.get_many([1])
        writer.seal()
        writer.write([make(KEYS[1], salt=1)], on_duplicate="replace")
        writer.seal()
        store.refresh()
        second, third = records.get_many([1]), records.get_many([1])
    assert not np.array_equal(first.features[0], second.features[0])
    assert_same(third, open_store(path).get_many(KEYS[1:2]))


def test_always_is_always(path):
    dataset = RegionDataset(open_store(path, verify="always"), KEYS, read="mmap")
    dataset.boxes_and_features(range(20))
    shard, offset, length = dataset.store.location(KEYS[9])
    with open(path / f"{shard}.lmdb", "rb+") as file:
        file.seek(offset + length - 1)
        file.write(b"\x01")
    with pytest.raises(CorruptRecord, match="checksum"):
        dataset.boxes_and_features([9])
