"""A store of patches is a store: what reads stores reads it."""

import numpy as np
import pytest

pytest.importorskip("transformers")

from cache import open_store
from cache.dataset import RegionLoader
from extractor import load_extractor
from ray_jobs.extract import run_extract
from ray_jobs.options import ExtractOptions
from roivault import main
from tests.extractor.grid_models import save_small


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    save_small("clip", folder, image=32)
    return folder


@pytest.fixture
def patches(clip, photos, tmp_path):
    """(folder of photos, store of their patches)."""
    folder, store = photos(5), tmp_path / "patches.roi"
    summary = run_extract(ExtractOptions(str(folder), str(store), f"clip:{clip}", dtype="float32", quiet=True))
    assert summary.records == 5 and not summary.failures
    return folder, store


@pytest.fixture
def roivault(capsys):
    """Runs a command and returns what it printed."""

    def run(*arguments):
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return run


def test_records_are_what_the_extractor_says(clip, patches):
    folder, path = patches
    store = open_store(str(path))
    for key, regions in zip(store.keys(), load_extractor(f"clip:{clip}")(sorted(folder.iterdir())), strict=True):
        assert np.array_equal(store[key].features, regions.features)
        assert np.array_equal(store[key].global_features, regions.global_features)
        assert np.array_equal(store[key].boxes, regions.boxes) and store[key].scores is None
    assert {"weights_sha256", "preprocess.short_side", "selection.max_regions"} <= store.manifest.fingerprint.keys()
    again = run_extract(ExtractOptions(str(folder), str(path), f"clip:{clip}", quiet=True))
    assert (again.new, again.already) == (0, 5)


def test_a_loader_and_a_server_pass_them_on(patches):
    pytest.importorskip("pyarrow")
    from tests.cache.asker import asked

    _, path = patches
    store = open_store(str(path))
    with asked(path) as server:
        remote = open_store(server.url)
        for target in (path, server.url):
            batches = list(RegionLoader(str(target), list(store.keys()), batch_size=2))
            assert [batch.features.shape for batch in batches] == [(2, 4, 32), (2, 4, 32), (1, 4, 32)]
            assert all(batch.mask.all() for batch in batches)
        assert all(np.array_equal(remote[key].global_features, store[key].global_features) for key in store.keys())


def test_every_tool_takes_them(patches, tmp_path, roivault):
    folder, path = patches
    assert "global_features" in roivault("stats", path)
    assert "ok: 5 records" in roivault("verify", path)
    assert "global_features" in roivault("show", path, "0000.png")
    roivault("view", path, "-o", tmp_path / "look")
    assert len(list((tmp_path / "look" / "pictures").iterdir())) == 5
    for layout in ("volta-lmdb", "iglue-h5", "mmf-npy", "butd-tsv"):
        roivault("convert", path, "-o", tmp_path / layout, "--to", layout, "-q")
        roivault(
            "convert", tmp_path / layout, "-o", tmp_path / f"{layout}.roi", "--from", layout, "--dtype", "float32", "-q"
        )
        assert "equal: all that both have is equal" in roivault("compare", path, tmp_path / f"{layout}.roi")
    roivault("subset", path, "0000.png", "-o", tmp_path / "one.roi")
    roivault("merge", path, "-o", tmp_path / "merged.roi")
    assert open_store(str(tmp_path / "merged.roi"))["0000.png"].global_features is not None
