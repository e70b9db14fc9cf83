"""The demo's second part: scenes drawn, extracted, learned from and tested on, each once."""

import json

import pytest
import torch

import roivault
from ray_jobs import commands, demo_training
from ray_jobs.demo_training import SERIES, TASKS, show, train_demo
from ray_jobs.options import ExtractOptions

COUNTS = {"train": 5, "dev": 2, "test": 3}


@pytest.fixture(autouse=True)
def one_thread(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(ExtractOptions, "num_threads", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(out):
    return train_demo(out, COUNTS, quiet=True, epochs=2, scheduled=2, batch=8)


def made(out):
    """When pictures, weights and predictions were written."""
    kinds = (".jpg", ".safetensors", ".json")
    files = (path for path in out.rglob("*") if path.suffix in kinds and out / "scenes.roi" not in path.parents)
    return {path: path.stat().st_mtime_ns for path in files}


def test_each_part_is_done_once(tmp_path, capsys):
    found = train(tmp_path)
    assert list(found) == list(TASKS)
    for one in found.values():
        assert one["n"] > 0 and one["n"] % 2 == 0 and 0 <= one["accuracy"] <= 100 and 0 <= one["shuffled"] <= 100
    kinds = [set(one["kinds"]) for one in found.values()]
    assert kinds == [{"class", "colour"}, {"side", "both"}]
    before = made(tmp_path)
    assert len(before) >= 4 + sum(COUNTS.values())
    assert train(tmp_path) == found and made(tmp_path) == before
    show(found)
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["one picture", "two pictures"]


@pytest.mark.parametrize("after", [1, 3, 9])
def test_what_was_interrupted_goes_on(tmp_path, monkeypatch, after):
    whole = train(tmp_path / "whole")

    class Interrupted(demo_training.Drain):
        asked = 0

        @property
        def requested(self):
            self.asked += 1
            return self.asked > after

        @requested.setter
        def requested(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(demo_training, "Drain", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts")
    assert train(tmp_path / "parts") == whole


def test_the_test_series_is_the_one_that_nothing_is_trained_on():
    from extractor.scenes import HELD_OUT_SEED

    assert SERIES["test"] == HELD_OUT_SEED and len({0, *SERIES.values()}) == 4


def demo(capsys, tmp_path, *args):
    code = roivault.main(["demo", "--out", str(tmp_path / "demo"), "--count", "1", "--quiet", *args])
    return code, capsys.readouterr()


def test_the_second_part_can_be_left_out(capsys, tmp_path, monkeypatch):
    code, said = demo(capsys, tmp_path, "--no-train", "--json")
    assert code == 0 and json.loads(said.out)["records"] == 1 and not (tmp_path / "demo" / "training").exists()
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    code, said = demo(capsys, tmp_path, "--json")
    assert code == 0 and json.loads(said.out)["training"] == {}
    assert "train an encoder: pip install 'transformers'" in said.err and "[consumers]" in said.err


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_learns_from_the_regions(capsys, tmp_path):
    code, said = demo(capsys, tmp_path, "--json")
    assert code == 0, said.err
    found = json.loads(said.out)["training"]
    assert list(found) == list(TASKS)
    for one in found.values():
        assert one["accuracy"] >= 90 and abs(one["shuffled"] - 50) < 5
