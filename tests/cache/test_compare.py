import json

import numpy as np
import pytest

from cache import StoreWriter, UsageError, open_store
from cache.compare import compare
from cache.contents import ForeignContents, HeldContents, StoreContents, open_contents
from cache.convert import convert
from tests.cache.images import WORDS, image


def write(path, records, dtype="float32", **more):
    with StoreWriter(path, dtype, vocabularies=WORDS, **more) as writer:
        writer.write(list(records))
    return path


def test_missing_on_either_side(tmp_path):
    a = write(tmp_path / "a.roi", (image(i) for i in range(0, 20)))
    b = write(tmp_path / "b.roi", (image(i) for i in range(5, 28)))
    report = compare(StoreContents(a), StoreContents(b))
    assert (report.compared, report.equal, report.missing_in_b, report.missing_in_a) == (15, 15, 5, 8)
    assert set(report.examples["missing_in_b"]) == {f"{i:06d}" for i in range(5)}
    assert set(report.examples["missing_in_a"]) < {f"{i:06d}" for i in range(20, 28)}
    assert report.differences_found() == ["missing_in_a", "missing_in_b"]
    json.dumps(report.to_dict())


def test_a_store_equals_itself(tmp_path):
    path = write(tmp_path / "a.roi", map(image, range(9)))
    report = compare(StoreContents(path), StoreContents(path))
    assert report.same and report.equal == 9 and not report.differences_found()


def test_sample_and_keys(tmp_path):
    a, b = (StoreContents(write(tmp_path / name, map(image, range(30)))) for name in ("a.roi", "b.roi"))
    one, two = (compare(a, b, sample=4) for _ in range(2))
    assert one.compared == two.compared == 4 and one.missing_in_a is None
    chosen = compare(a, b, keys=["000003", "000004", "nowhere"])
    assert chosen.compared == 2 and chosen.examples["missing_in_a"] == ["nowhere"]


def test_stores_of_different_dtypes(tmp_path):
    sides = [write(tmp_path / f"{dtype}.roi", map(image, range(5)), dtype) for dtype in ("float16", "bfloat16")]
    report = compare(*map(StoreContents, sides))
    assert report.dtypes == {("float16", "bfloat16"): 5} and report.count("features", "rounded") == 5


def test_a_foreign_cache_on_either_side(tmp_path):
    path = write(tmp_path / "a.roi", map(image, range(8)), "float16")
    convert(path, tmp_path / "a.tsv", destination_format="lxmert-tsv")
    store, foreign = open_contents([path]), open_contents([tmp_path / "a.tsv"])
    assert isinstance(foreign, ForeignContents) and foreign.format == "lxmert-tsv"
    for sides in ((store, foreign), (foreign, store)):
        report = compare(*sides)
        assert (report.compared, report.missing_in_a, report.missing_in_b) == (8, 0, 0)
        assert report.count("features", "equal") == 8 and len(report.dtypes) == 1
    assert compare(foreign, store, sample=3).compared == 3
    with pytest.raises(UsageError, match="convert"):
        compare(foreign, foreign)
    with pytest.raises(UsageError, match="--ids"):
        compare(foreign, store, keys=["a"])


def test_other_keys(tmp_path):
    a = write(tmp_path / "a.roi", (image(i, key=f"val/{i:06d}.jpg") for i in range(12)))
    b = write(tmp_path / "b.roi", (image(i) for i in range(10)))
    for sides, missing in (((a, b), (0, 2)), ((b, a), (2, 0))):
        report = compare(*map(StoreContents, sides))
        assert report.compared == report.equal == 10 and report.keys.changes
        assert (report.missing_in_a, report.missing_in_b) == missing


def test_records_that_cannot_be_read_are_counted(tmp_path):
    a, b = (write(tmp_path / name, map(image, range(6))) for name in ("a.roi", "b.roi"))
    shard, offset, _ = open_store(str(b)).location("000002")
    with open(b / f"{shard}.lmdb", "r+b") as file:
        file.seek(offset)
        file.write(b"damage")
    for sides, letter in (((a, b), "b"), ((b, a), "a")):
        report = compare(*map(StoreContents, sides))
        assert report.compared == 5 and report.unreadable == {(letter, "decode_error"): 1}
        assert report.missing_in_a == report.missing_in_b == 0


@pytest.mark.parametrize("count", [0, 3])
def test_without_records_or_regions(tmp_path, count):
    a, b = (write(tmp_path / name, (image(i, n=0) for i in range(count))) for name in ("a.roi", "b.roi"))
    report = compare(StoreContents(a), StoreContents(b))
    assert report.compared == report.equal == count and report.same == (count > 0)


def test_dimensions_that_differ():
    a, b = (HeldContents(str(d), {r.key: r for r in (image(i, d=d) for i in range(10))}, WORDS) for d in (64, 32))
    report = compare(a, b)
    assert report.dims == {(64, 32): 10} and "columns" in report.differences_found()


def test_memory_does_not_grow(tmp_path):
    def many(count):
        return HeldContents("many", {str(i): image(i % 7, n=2, d=4, key=str(i)) for i in range(count)}, {})

    sizes = []
    for count in (100, 400):
        report = compare(many(count), many(count + 50))
        sizes.append(len(json.dumps(report.to_dict())))
        assert report.compared == count and report.missing_in_a == 50
    assert sizes[1] < sizes[0] * 1.2


def test_progress_is_told_of_every_image():
    calls = []
    sides = [HeldContents("x", {r.key: r for r in map(image, range(5))}, {}) for _ in "ab"]
    compare(*sides, progress=lambda: calls.append(1))
    assert len(calls) == 5
    assert np.isclose(compare(*sides).cosine_gaps.high, 0, atol=1e-6)
