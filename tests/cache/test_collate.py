"""Padded batches: the published reader's numbers, and what padding, truncation and the mean region promise."""

import os
import pickle
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from cache import DataError, Regions, StoreWriter, UsageError, open_store
from cache.batch import RegionBatch
from cache.collate import collate_regions

SHARED = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
GOLDEN = SHARED / "golden" / "encoders" / "feature_reader.npz"


def check_padding(batch: RegionBatch) -> None:
    """What holds whatever the options: real rows come first, and everything else is zero."""
    rows = batch.mask.shape[1]
    assert torch.equal(batch.mask, torch.arange(rows) < batch.num_regions[:, None])
    for tensor in (batch.features, batch.boxes, batch.locations):
        assert tensor.shape[:2] == batch.mask.shape and tensor.is_contiguous()
        assert not tensor[~batch.mask].any()


@pytest.mark.skipif(not GOLDEN.exists(), reason="the golden files are not here")
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("global_region", ["none", "first", "last"])
@pytest.mark.parametrize("num_locations", [4, 5, 7])
def test_published_reader(num_locations, global_region, normalize):
    golden = np.load(GOLDEN)
    regions = [
        Regions(key, *map(int, golden[f"raw/{key}/wh"]), golden[f"raw/{key}/boxes"], golden[f"raw/{key}/features"])
        for key in "ab"
    ]
    options = dict(num_locations=num_locations, global_region=global_region, normalize=normalize)
    batch = collate_regions(regions, **options)
    check_padding(batch)
    word = "None" if global_region == "none" else global_region
    for i, key in enumerate("ab"):
        wanted = f"locs{num_locations}_global-{word}_norm{normalize:d}/{key}"
        n = int(golden[f"{wanted}/n"])
        assert batch.num_regions[i] == n
        np.testing.assert_allclose(batch.features[i, :n], golden[f"{wanted}/features"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(batch.locations[i, :n], golden[f"{wanted}/locs"], rtol=0, atol=1e-6)


@pytest.fixture
def images(make):
    return [make("a", n=5), make("b", n=0), make("c", n=9), make("d", n=2)]


def test_padded_to_the_batch(images):
    batch = collate_regions(images)
    check_padding(batch)
    assert batch.features.shape == (4, 9, 8) and batch.features.dtype == torch.float32 and len(batch) == 4
    assert batch.num_regions.tolist() == [5, 0, 9, 2] and batch.keys == ["a", "b", "c", "d"]
    for i, item in enumerate(images):
        assert np.array_equal(batch.features[i, : len(item)], item.features)
        assert np.array_equal(batch.boxes[i, : len(item)], item.boxes)


def test_truncated_and_padded_to_a_number(images):
    batch = collate_regions(images, max_regions=4)
    assert batch.features.shape[1] == 4 and batch.num_regions.tolist() == [4, 0, 4, 2]
    batch = collate_regions(images, max_regions=12, pad_to_max=True)
    check_padding(batch)
    assert batch.features.shape[1] == 12 and batch.num_regions.tolist() == [5, 0, 9, 2]


@pytest.mark.parametrize("global_region", ["first", "last"])
@pytest.mark.parametrize("normalize", [False, True])
def test_mean_region_counts_and_is_of_all_regions(images, global_region, normalize):
    batch = collate_regions(images, max_regions=5, pad_to_max=True, global_region=global_region, normalize=normalize)
    check_padding(batch)
    assert batch.num_regions.tolist() == [5, 1, 5, 3]
    for i, item in enumerate(images):
        rows = item.features.astype(np.float64)
        if normalize:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        mean = rows.mean(0) if len(rows) else np.zeros(8)
        at = 0 if global_region == "first" else int(batch.num_regions[i]) - 1
        np.testing.assert_allclose(batch.features[i, at], mean, atol=1e-6)
        assert batch.boxes[i, at].tolist() == [0, 0, 640, 480]
        assert batch.locations[i, at].tolist() == [0, 0, 1, 1, 1]
        kept = int(batch.num_regions[i]) - 1
        own = batch.features[i, 1 - at if at == 0 else 0 :][:kept]
        np.testing.assert_allclose(own, rows[:kept], atol=1e-6)


@pytest.mark.parametrize("global_region", ["first", "last"])
@pytest.mark.parametrize("normalize", [False, True])
def test_mean_region_takes_the_place_of_the_last_one_of_images_that_fill_the_batch(make, global_region, normalize):
    full = [make("a", n=5, d=8, dtype=np.float32), make("b", n=5, d=8, dtype=np.float32)]
    options = dict(max_regions=5, global_region=global_region, normalize=normalize)
    batch, beside = collate_regions(full, **options), collate_regions([*full, make("c", n=2, d=8)], **options)
    for name in ("features", "boxes", "locations", "mask"):
        assert torch.equal(getattr(batch, name), getattr(beside, name)[:2])
    own = slice(1, None) if global_region == "first" else slice(0, 4)
    assert np.array_equal(batch.boxes[1, own], full[1].boxes[:4])


def test_zero_rows_are_not_divided_by_zero():
    regions = Regions("a", 10, 10, np.zeros((2, 4)), np.zeros((2, 3), np.float32))
    batch = collate_regions([regions], normalize=True)
    assert not batch.features.any() and not batch.locations.any()


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(make, stored, wanted):
    images = [make("a", n=3, dtype=np.float32), make("b", n=4)]
    images[1] = images[1].replace(features=images[1].features.astype(stored))
    images[0] = images[0].replace(features=images[0].features.astype(stored))
    batch = collate_regions(images, dtype=wanted, global_region="first", normalize=True)
    check_padding(batch)
    assert batch.features.dtype == wanted
    reference = collate_regions(
        [item.replace(features=item.features.astype(np.float32)) for item in images],
        global_region="first", normalize=True,
    )  # fmt: skip
    torch.testing.assert_close(batch.features.float(), reference.features, rtol=0, atol=0.02)
    if wanted == torch.float32:
        assert torch.equal(batch.features, reference.features)
    plain = collate_regions(images, dtype=wanted)
    exact = torch.from_numpy(images[1].features.astype(np.float32)).to(wanted)
    assert torch.equal(plain.features[1], exact)


def test_several_stored_dtypes_in_one_batch(make):
    half = make("a", n=2, dtype=np.float16)
    batch = collate_regions([half, make("b", n=2)])
    assert np.array_equal(batch.features[0], half.features.astype(np.float32))


def test_records_in_a_mapped_file_are_not_written_to(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a", n=6), make("b", n=2)])
    before = (path / "shard-00000.lmdb").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = dict(max_regions=3, global_region="last", normalize=True, dtype=torch.float16)
        check_padding(collate_regions(open_store(path).get_many(["a", "b"]), **options))
        check_padding(collate_regions(open_store(path).get_many(["a", "b"]), max_regions=3, global_region="last"))
    assert (path / "shard-00000.lmdb").read_bytes() == before


@pytest.mark.parametrize("global_region", ["none", "first", "last"])
def test_memory_is_used_again(images, make, global_region):
    options = dict(global_region=global_region, num_locations=7, normalize=True)
    out = collate_regions(images, **options)
    memory = out.features.untyped_storage().data_ptr()
    out.features.fill_(float("nan"))
    small = collate_regions(images[3:], **options, out=out)
    assert small.features.untyped_storage().data_ptr() == memory
    again = collate_regions(images, **options, out=small)  # the memory is larger than the last batch
    assert again.features.untyped_storage().data_ptr() == memory
    fresh = collate_regions(images, **options)
    assert all(torch.equal(a, fresh.tensors()[name]) for name, a in again.tensors().items())
    larger = [make(f"{i}", n=20) for i in range(4)]
    grown = collate_regions(larger, **options, out=again)
    assert torch.equal(grown.features, collate_regions(larger, **options).features)


def test_moves_and_pickles(images):
    batch = collate_regions(images)
    for other in (batch.to("cpu", non_blocking=True), pickle.loads(pickle.dumps(batch))):
        assert other.keys == batch.keys
        assert all(torch.equal(a, b) for a, b in zip(batch.tensors().values(), other.tensors().values(), strict=True))


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(max_regions=0), "max_regions=0"),
        (dict(pad_to_max=True), "needs max_regions"),
        (dict(num_locations=3), "4, 5, 6 or 7"),
        (dict(global_region=True), "first"),
        (dict(dtype=torch.float64), "float64"),
    ],
)
def test_wrong_options(images, options, said):
    with pytest.raises(UsageError, match=said):
        collate_regions(images, **options)


def test_batches_that_cannot_be(make):
    with pytest.raises(DataError, match="at least one image"):
        collate_regions([])
    with pytest.raises(DataError, match="'b' has features of dimension 4, 'a' of 8"):
        collate_regions([make("a"), make("b", n=0, d=4)])
