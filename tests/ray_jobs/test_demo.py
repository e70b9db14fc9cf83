"""The way from pictures to a page with the model that ships."""

import numpy as np
import pytest

from cache import InputNotFound, open_store
from extractor import load_extractor
from ray_jobs.demo import run_demo
from ray_jobs.extract import run_extract
from ray_jobs.options import ExtractOptions


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Two threads of one matrix product wait for each other where many processes share the cores."""
    monkeypatch.setattr(ExtractOptions, "num_threads", 1)


def test_demo(tmp_path):
    summary, page = run_demo(tmp_path / "demo", count=3, quiet=True)
    assert (summary.exit_code, summary.records, summary.new) == (0, 3, 3) and summary.regions > 0
    shown = page.read_text("utf-8")
    store = open_store(summary.store)
    assert all(key in shown for key in store.keys()) and len(store) == 3
    again, _ = run_demo(tmp_path / "demo", count=3, quiet=True)
    assert (again.new, again.refreshed, again.already) == (0, 0, 3)
    other, _ = run_demo(tmp_path / "demo", count=3, seed=1, quiet=True)
    assert (other.refreshed, other.records) == (3, 3), "other scenes under the same names"


def test_demo_of_own_photos(tmp_path, picture):
    picture(tmp_path / "photos" / "mine.png", size=(120, 90))
    (tmp_path / "photos" / "bad.jpg").write_bytes(b"")
    summary, page = run_demo(tmp_path / "demo", tmp_path / "photos", quiet=True)
    assert (summary.exit_code, summary.records, summary.failures) == (0, 1, {"empty": 1})
    assert "mine.png" in page.read_text("utf-8") and "bad.jpg" in page.read_text("utf-8")
    with pytest.raises(InputNotFound, match="nowhere"):
        run_demo(tmp_path / "demo", tmp_path / "nowhere", quiet=True)


def test_a_job_stores_what_the_extractor_returns(tmp_path, picture):
    sizes = [(120, 90), (90, 120), (120, 90), (64, 64)]
    paths = [picture(tmp_path / "photos" / f"{i}.png", i, size=size) for i, size in enumerate(sizes)]
    run_extract(ExtractOptions(str(tmp_path / "photos"), str(tmp_path / "s.roi"), "demo", dtype="float32", quiet=True))
    store = open_store(str(tmp_path / "s.roi"))
    for regions in load_extractor("demo")(paths, keys=[path.name for path in paths]):
        for name, array in regions.arrays().items():
            assert np.array_equal(array, store[regions.key].arrays()[name]), (regions.key, name)
        assert store[regions.key].source_digest == regions.source_digest
