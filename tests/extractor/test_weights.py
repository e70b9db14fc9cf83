import hashlib
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cache import InputNotFound, WeightsError
from extractor.detector import Detector
from extractor.presets import VG_R101
from extractor.weights import SOURCE_SHA256, check_weights, file_sha256, load_weights, weights_path, weights_sha256


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


def test_other_formats_and_prefixes_give_the_same_network(model, small_weights, tmp_path):
    state = load_file(small_weights)
    torch.save({"model": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "a.pth")
    anchors = {"proposal_generator.anchor_generator.cell_anchors.0": np.zeros((12, 4), np.float32)}
    arrays = {name: tensor.numpy() for name, tensor in state.items()} | anchors
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": arrays, "__author__": "x"}, 2))
    for name in ("a.pth", "a.pkl"):
        load_weights(model, tmp_path / name)
        assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
        model.load_state_dict({key: torch.zeros_like(tensor) for key, tensor in state.items()})


def test_only_in_the_cache_a_converted_checkpoint_counts_as_the_original(small_weights, tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))
    (tmp_path / "weights").mkdir()
    installed, given = tmp_path / "weights" / "installed.safetensors", tmp_path / "given.safetensors"
    for path in (installed, given):
        save_file(load_file(small_weights), str(path), {SOURCE_SHA256: "ab" * 32})
    assert weights_sha256(installed) == "ab" * 32
    assert weights_sha256(given) == file_sha256(given)  # anybody can write that into a file
    (tmp_path / "weights" / "link.safetensors").symlink_to(given)
    assert weights_sha256(tmp_path / "weights" / "link.safetensors") == file_sha256(given)
    assert weights_sha256(small_weights) == file_sha256(small_weights)


def test_given_weights_are_compared_with_the_network_before_it_is_loaded(small_preset, small_weights, tmp_path):
    check_weights(small_preset, small_weights)
    other = replace(small_preset, architecture=replace(small_preset.architecture, rpn_channels=17))
    with pytest.raises(WeightsError, match=r"rpn_head.conv.bias has shape \[16\], expected \[17\]"):
        check_weights(other, small_weights)
    with pytest.raises(InputNotFound, match=r"nowhere\.pth"):
        check_weights(small_preset, tmp_path / "nowhere.pth")


def test_any_file_has_a_checksum(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))
    (tmp_path / "weights").mkdir()
    for content in (b"", b"\x10" + b"\0" * 7 + b"{", b"\xff" * 8 + b"{", b"\x80\x02}."):
        (tmp_path / "weights" / "other").write_bytes(content)
        assert weights_sha256(tmp_path / "weights" / "other") == file_sha256(tmp_path / "weights" / "other")


def test_missing_published_weights_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))
    with pytest.raises(InputNotFound) as caught:
        weights_path(VG_R101)
    assert all(url in str(caught.value) for url in VG_R101.urls)
    assert "roivault weights fetch vg-r101" in str(caught.value) and str(tmp_path) in str(caught.value)


def test_weights_that_may_not_be_read_are_named(small_preset, small_weights, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != small_weights)
    with pytest.raises(InputNotFound, match="small.safetensors, or none that may be read"):
        weights_path(small_preset, small_weights)


def test_two_names_of_one_tensor_are_told_with_the_file(model, small_weights, tmp_path):
    state = load_file(small_weights)
    state["rpn.head.cls_logits.bias"] = state["proposal_generator.rpn_head.objectness_logits.bias"].clone()
    save_file(state, str(tmp_path / "twice.safetensors"))
    with pytest.raises(WeightsError, match="twice.safetensors: .*objectness_logits.bias under two names"):
        load_weights(model, tmp_path / "twice.safetensors")


def test_missing_weights_name_the_path(small_preset, tmp_path):
    with pytest.raises(InputNotFound, match="nowhere.safetensors"):
        weights_path(small_preset, tmp_path / "nowhere.safetensors")
