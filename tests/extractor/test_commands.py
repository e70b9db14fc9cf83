"""The verb `models`; `view` and `weights` have tests of their own."""

import json
import sys

import pytest

import roivault
from extractor.presets import get_preset


@pytest.fixture
def models(capsys, tmp_path, monkeypatch):
    """What `roivault models` prints, its columns by model, and what it prints as JSON, by model."""
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))

    def run():
        assert roivault.main(["models"]) == 0
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert roivault.main(["models", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [line[0] for line in lines] == [row["name"] for row in rows] == roivault.list_extractors()
        return {line[0]: line[1:] for line in lines}, {row["name"]: row for row in rows}

    return run


def test_models_tells_of_each_what_it_is_for_and_gives(models):
    lines, rows = models()
    for name, row in rows.items():
        preset = get_preset(name)
        assert lines[name][-1] == row["summary"] == preset.summary and row["dim"] == preset.dim
        assert (row["classes"], row["attributes"]) == (len(preset.classes), len(preset.attributes))
    assert lines["demo"][:4] == ["10-36", "384", "12", "12"]
    assert lines["vg-r101"][0] == "up to 36" and lines["vg-x101-iglue"][0] == "100"


def test_models_tells_whether_the_weights_are_there_and_how_to_get_them(models, tmp_path):
    lines, rows = models()
    assert lines["vg-r101"][4] == "vg_r101_36: roivault weights fetch vg-r101" and not rows["vg-r101"]["installed"]
    assert rows["demo"]["get"] is None
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "vg_r101_36.safetensors").write_bytes(b"")
    lines, rows = models()
    for name in ("vg-r101", "vg-r101-butd", "frcnn-vg-hf"):  # one file serves them all
        assert lines[name][4] == "vg_r101_36: installed" and rows[name]["installed"]
    assert not rows["vg-r101-adaptive"]["installed"]


@pytest.mark.parametrize("there", [True, False])
def test_models_tells_what_else_must_be_installed(models, monkeypatch, there):
    monkeypatch.setattr("extractor.commands.find_spec", lambda name: sys if there else None)
    lines, rows = models()
    assert ("detectron2 is not installed" in lines["vsr-visualbert"][4]) == (not there)
    assert rows["vsr-visualbert"]["lacks"] == (None if there else "detectron2") and rows["vg-r101"]["lacks"] is None
