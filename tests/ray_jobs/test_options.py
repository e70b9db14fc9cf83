import pytest

from cache import UsageError
from ray_jobs.options import ExtractOptions, parse_allowance, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500MB", 500_000_000), ("1.5 KiB", 1536), ("10k", 10_000), ("4096", 4096), (4096, 4096)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1MB", "0", "8XB", "1e9", "8 Gi B B"])
def test_wrong_sizes(text):
    with pytest.raises(UsageError, match="8GiB"):
        parse_size(text)


def test_allowances():
    assert str(parse_allowance("20")) == "20" and str(parse_allowance("0.5%")) == "0.5%"
    assert parse_allowance("0").exceeded(1, 100) and not parse_allowance("100%").exceeded(9, 9)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "many", "%"])
def test_wrong_allowances(text):
    with pytest.raises(UsageError, match="max-failures"):
        parse_allowance(text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("engine", "spark"),
        ("models_per_gpu", 0),
        ("timeout", 0),
        ("device", "tpu"),
        ("device", "cuda:x"),
        ("precision", "float8"),
        ("dtype", "float64"),
        ("orientation", "rotate"),
        ("truncated", "skip"),
        ("key", "hash"),
        ("limit", 0),
        ("threads", 0),
        ("writers", 0),
        ("shard_size", "big"),
        ("max_failures", "x"),
    ],
)
def test_wrong_values_are_refused_at_once(option, value):
    with pytest.raises(UsageError, match=option.replace("_", "-")) as caught:
        ExtractOptions("photos", "s.roi", "demo", **{option: value})
    assert str(value) in str(caught.value)


def test_where_a_store_may_be(tmp_path):
    (tmp_path / "file").touch()
    folder = str(tmp_path)
    for output, why in [
        ("", "empty"),
        ("s3://bucket/s.roi", "needs --work DIR"),
        (f"{tmp_path}/file", "is a file"),
        (folder, "folder of the images"),
        (f"{folder}/store", "end in .roi"),
    ]:
        with pytest.raises(UsageError, match=why):
            ExtractOptions(folder, output, "demo")
    ExtractOptions(folder, f"{folder}/photos.roi", "demo")
    ExtractOptions(folder, f"{folder}2", "demo")


def test_an_address_is_of_a_cluster():
    with pytest.raises(UsageError, match="--address"):
        ExtractOptions("photos", "s.roi", "demo", engine="local", address="auto")


def test_threads_default_to_the_cores_that_may_be_used():
    assert ExtractOptions("photos", "s.roi", "demo").num_threads >= 1
    assert ExtractOptions("photos", "s.roi", "demo", threads=3).num_threads == 3
