import hashlib

import pytest
import torch
from safetensors.torch import load_file, save_file

from cache import InputNotFound, WeightsError
from extractor.detector import Detector
from extractor.weights import file_sha256, load_weights, weights_path


@pytest.fixture
def model(small_preset):
    return Detector(small_preset.architecture)


def test_weights_arrive_unchanged(model, small_weights):
    load_weights(model, small_weights)
    stored = load_file(small_weights)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    assert file_sha256(small_weights) == hashlib.sha256(small_weights.read_bytes()).hexdigest()


def drop(state):
    del state["roi_heads.res5.0.conv1.weight"]


def rename(state):
    state["module.extra"] = torch.zeros(3)


def reshape(state):
    state["roi_heads.box_predictor.cls_score.bias"] = torch.zeros(5)


def poison(state):
    state["backbone.stem.conv1.weight"][0, 0, 0, 0] = float("nan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, "missing roi_heads.res5.0.conv1.weight"),
        (rename, "unknown module.extra"),
        (reshape, r"cls_score.bias has shape \[5\], expected \[13\]"),
        (poison, "stem.conv1.weight holds NaN"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(model, small_weights, tmp_path, change, words):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = load_file(small_weights)
    change(state)
    save_file(state, str(tmp_path / "bad.safetensors"))
    with pytest.raises(WeightsError, match=words):
        load_weights(model, tmp_path / "bad.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"<html>404</html>", None])
def test_damaged_files_are_refused(model, small_weights, tmp_path, content):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(small_weights.read_bytes()[:5000] if content is None else content)
    with pytest.raises(WeightsError, match="bad.safetensors"):
        load_weights(model, path)


def test_missing_weights_name_the_path(small_preset, tmp_path):
    with pytest.raises(InputNotFound, match="nowhere.safetensors"):
        weights_path(small_preset, tmp_path / "nowhere.safetensors")
