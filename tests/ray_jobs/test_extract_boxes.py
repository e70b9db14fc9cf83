"""Jobs that describe given boxes, with the small model that comes along."""

import json

import numpy as np
import pytest

from cache import StoreMismatch, UsageError, open_store
from extractor.presets import DEMO
from ray_jobs.extract import run_extract
from ray_jobs.options import ExtractOptions


@pytest.fixture
def extract(photos, tmp_path):
    if not DEMO.weights_file.is_file():
        pytest.skip("the demo's weights are not in this tree")

    def run(rows, **options):
        (tmp_path / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options = {"boxes": str(tmp_path / "boxes.jsonl"), "max_failures": "5", "quiet": True, **options}
        output = str(tmp_path / "s.roi")
        return run_extract(ExtractOptions(str(photos(3)), output, "demo", **options)), open_store(output)

    return run


def test_records_hold_the_boxes_of_the_file(extract):
    good, bad = [[1, 2, 11, 12], [0, 0, 24, 16]], [[5, 5, 5, 9]]
    boxes = [{"key": "0000.png", "boxes": good}, {"key": "0001.png", "boxes": bad}]
    summary, store = extract(boxes)
    assert store["0000.png"].boxes.tolist() == good
    degenerate, without = sorted(store.failures(), key=lambda failure: failure.key)
    assert (degenerate.key, degenerate.kind) == ("0001.png", "bad_boxes") and "box 0" in degenerate.message
    assert (without.key, without.kind) == ("0002.png", "bad_boxes") and summary.failures == {"bad_boxes": 2}
    assert store.manifest.fingerprint["given_boxes"] is True


def test_units_and_formats_are_applied(extract):
    _, store = extract([{"key": "0002.png", "boxes": [[0.5, 0.5, 0.25, 0.5]]}], box_format="xywh", box_units="relative")
    assert np.allclose(store["0002.png"].boxes, [[12, 8, 18, 16]])


@pytest.mark.parametrize("rows", [[[0.0, 0.0, 0.5, 0.5], [0.25, 0.25, 1.0, 1.0]], []])
def test_one_array_serves_every_image_and_an_empty_one_none(extract, tmp_path, rows):
    np.save(tmp_path / "grid.npy", np.array(rows).reshape(-1, 4))
    summary, store = extract([], boxes=str(tmp_path / "grid.npy"), box_units="relative")
    assert [len(store[key]) for key in store.keys()] == [2] * len(store) and len(store) == (3 if rows else 0)
    assert summary.failures == ({} if rows else {"bad_boxes": 3})


def test_other_boxes_do_not_go_into_the_same_store(extract):
    extract([{"key": "0000.png", "boxes": [[1, 2, 11, 12]]}])
    for rows, options in (([{"key": "0000.png", "boxes": [[1, 2, 11, 13]]}], {}), ([], {"boxes": None})):
        with pytest.raises(StoreMismatch, match="box"):
            extract(rows, **options)


def test_a_format_without_boxes_is_refused():
    with pytest.raises(UsageError, match="--boxes"):
        ExtractOptions("photos", "s.roi", "demo", box_units="relative")
