import json

import numpy as np
import pytest

from cache import Regions, StoreWriter
from cache.contents import HeldContents, StoreContents
from cache.formats.base import Problem
from cache.stats import MOST_SIZES, Stats, collect
from tests.cache.images import WORDS, image


def held(*records):
    return HeldContents("held", {record.key: record for record in records}, WORDS)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s.roi"
    with StoreWriter(path, "float16", vocabularies=WORDS) as writer:
        writer.write([image(i, n=10 + i % 3) for i in range(30)])
    return path


def test_counts_add_up(store):
    stats = collect(StoreContents(store))
    records = [image(i, n=10 + i % 3) for i in range(30)]
    assert stats.records == stats.records_in_all == 30
    assert stats.measures["regions"].bins == {10: 10, 11: 10, 12: 10}
    assert sum(stats.classes.values()) == sum(map(len, records)) == stats.measures["norm"].count
    ids = np.concatenate([r.class_ids for r in records])
    assert stats.named("classes", 3)[0][1] == np.bincount(ids).max()
    assert dict(stats.named("classes", 30)) == {WORDS["classes"][i]: (ids == i).sum() for i in set(ids.tolist())}
    assert stats.dtypes == {"float16": 30} and stats.dims == {64: 30}
    assert stats.measures["width"].low == min(r.width for r in records)
    norms = np.concatenate([np.linalg.norm(r.features.astype(np.float16).astype(np.float32), axis=1) for r in records])
    assert stats.measures["norm"].mean == pytest.approx(norms.mean(), rel=1e-4)
    zeros = np.concatenate([(r.features == 0).mean(axis=1) for r in records])
    assert stats.measures["zeros"].mean == pytest.approx(zeros.mean(), rel=1e-3)
    assert not stats.troubles and stats.dead == 0
    json.dumps(stats.to_dict())


def test_bytes_are_those_of_the_store(store):
    contents = StoreContents(store)
    sizes = [contents.store.location(key)[2] for key in contents.keys()]
    assert collect(contents).measures["bytes"].mean == pytest.approx(np.mean(sizes))


def test_sample_is_the_same_each_time(store):
    seen = [[r.key for r in StoreContents(store).records(7)] for _ in range(2)]
    assert seen[0] == seen[1] and len(set(seen[0])) == 7
    assert collect(StoreContents(store), 7).records == 7
    assert collect(StoreContents(store), 1000).records == 30


def test_troubles_are_counted_with_examples():
    good = image(0)
    features = good.features.copy()
    features[3] = 0
    zero = good.replace(key="zero", features=features)
    boxes = good.boxes.copy()
    boxes[0] = [10, 10, 10, 50]
    boxes[1] = [10, 10, good.width + 40, 50]
    odd = good.replace(key="odd", boxes=boxes)
    shares = good.replace(key="shares", boxes=good.boxes / 2000)
    nan = features.copy()
    nan[5, 5] = np.nan
    broken = Regions.trusted(**{**good.__dict__, "key": "nan", "features": nan})
    unnamed = good.replace(key="unnamed", class_ids=np.full(len(good), 30))
    nothing = image(1, n=0, key="nothing")
    stats = collect(held(good, zero, odd, shares, broken, unnamed, nothing))
    found = {
        name: (stats.troubles[name], stats.troubled_regions[name], stats.examples[name]) for name in stats.troubles
    }
    assert found == {
        "zero_rows": (2, 2, ["zero", "nan"]),
        "degenerate": (1, 1, ["odd"]),
        "outside": (1, 1, ["odd"]),
        "unit_boxes": (1, 12, ["shares"]),
        "not_finite": (1, 1, ["nan"]),
        "unnamed_ids": (1, 12, ["unnamed"]),
        "no_regions": (1, 0, ["nothing"]),
    }


def test_features_that_are_never_used():
    records = []
    for i in range(3):
        record = image(i)
        features = record.features.copy()
        features[:, :5] = 0
        records.append(record.replace(features=features))
    assert collect(held(*records)).dead == 5


def test_corrupt_records_are_counted_and_the_rest_is_read(store):
    contents = StoreContents(store)
    shard, offset, _ = contents.store.location("000004")
    with open(store / f"{shard}.lmdb", "r+b") as file:
        file.seek(offset)
        file.write(b"damage")
    stats = collect(StoreContents(store))
    assert stats.records == 29 and stats.unreadable.total() == 1
    assert stats.examples["unreadable: decode_error"] == ["000004"]


def test_each_reason_has_examples_of_its_own():
    stats = Stats("some", "butd-tsv", None, {})
    for key, kind in (("k1", "non_finite"), ("k3", "bad_boxes")):
        stats.add(Problem("line", "why", key, kind))
    assert stats.to_dict(5)["examples_unreadable"] == {"non_finite": ["k1"], "bad_boxes": ["k3"]}


def test_memory_does_not_grow_with_the_number_of_records():
    stats = Stats("many", "memory", None, {})
    record = image(0, n=1, d=4)
    for i in range(1, 2 * MOST_SIZES + 1):
        stats.add(record.replace(key=str(i), width=i, class_ids=np.array([i * 260_000])))
    assert len(stats.sizes) == MOST_SIZES and len(stats.classes) <= 1 << 16
    assert all(len(numbers.bins) < 5000 for numbers in stats.measures.values())
    assert stats.records == 2 * MOST_SIZES and all(len(keys) <= 5 for keys in stats.examples.values())


def test_nothing_to_look_at():
    stats = collect(held())
    assert stats.records == 0 and json.dumps(stats.to_dict())
