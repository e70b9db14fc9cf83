import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cache import WeightsError
from extractor.fitting import models_for
from extractor.networks import empty_network
from extractor.presets import PRESETS, get_preset
from extractor.weights import check_weights, load_weights
from tests.extractor.shrunken import save_weights, shrunken


@pytest.fixture
def small(monkeypatch):
    """Every preset whose network is here, shrunken; they alone are looked at."""
    found = {name: shrunken(preset) for name, preset in PRESETS.items() if not hasattr(preset.architecture, "package")}
    monkeypatch.setattr("extractor.fitting.PRESETS", found)
    return found


def test_names_are_told_apart_where_projects_share_most_of_them(small):
    expected = {
        "vg-r101": {"vg-r101", "vg-r101-butd", "vg-r101-adaptive", "frcnn-vg-hf", "vg-r101-grid"},
        "bua-r101-36": {"bua-r101-36", "bua-r101-10-100"},
        "bua-d2-r101": {"bua-d2-r101"},
        "bua-d2-x152": {"bua-d2-x152"},
        "vinvl-x152": {"vinvl-x152", "vinvl-x152-filter2", "vinvl-x152-filter0"},
    }
    for name, names in expected.items():
        assert set(models_for(empty_network(small[name].architecture).state_dict())) == names
    assert models_for({"backbone.x": torch.zeros(3)}) == []


def test_a_misfit_is_refused_with_the_models_that_the_file_is_for(tmp_path, small):
    files = {name: save_weights(small[name], tmp_path) for name in ("bua-r101-36", "bua-d2-r101")}
    for name, file, words in (
        ("bua-r101-36", "bua-d2-r101", "bua-d2-r101"),
        ("bua-d2-r101", "bua-r101-36", "bua-r101-36, bua-r101-10-100"),
        ("vg-r101", "bua-r101-36", "bua-r101-36, bua-r101-10-100"),
    ):
        with pytest.raises(WeightsError, match=f"does not fit this model, it is for {words}: missing"):
            check_weights(small[name], files[file])
    damaged = load_file(files["bua-d2-r101"])
    damaged["backbone.stem.conv1.weight"][0] = np.nan
    save_file(damaged, str(tmp_path / "nan.safetensors"))
    with pytest.raises(WeightsError, match="does not fit this model: backbone.stem.conv1.weight holds NaN"):
        check_weights(small["bua-d2-r101"], tmp_path / "nan.safetensors")


def test_a_doubt_is_a_warning(tmp_path):
    from extractor.bua_caffe import ANCHORS, BuaCaffeDetector

    preset = shrunken(get_preset("bua-r101-36"))
    state = load_file(save_weights(preset, tmp_path))
    network = BuaCaffeDetector(preset.architecture)
    state[ANCHORS] = network.default_tensors()[ANCHORS] / 16
    save_file(state, str(tmp_path / "tiny.safetensors"))
    with pytest.warns(UserWarning, match="tiny.safetensors: its anchors.* have sides of 1 to 11 px"):
        load_weights(network, tmp_path / "tiny.safetensors")
    assert torch.equal(network.proposal_generator.cells, state[ANCHORS])
