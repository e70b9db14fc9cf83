"""Training in miniature: the targets are right, the loss falls, the checkpoint loads, the run can be repeated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from extractor.detector import Detector
from extractor.preprocess import frame, network_input
from extractor.scenes import ATTRIBUTES, CLASSES, HELD_OUT_SEED, IMAGE_SIZES, make_scene
from extractor.train_demo import Losses, Recipe, SceneBatches, save_weights, train, truth_of
from extractor.weights import load_weights

TINY = Recipe(seed=1, steps=30, batch=2, warmup=5, workers=0, threads=1, anchors_per_image=32, rois_per_image=16)


@pytest.fixture(scope="module")
def tiny_preset(small_preset):
    """Scenes of a third of the size, to be quick."""
    return replace(small_preset, preprocess=replace(small_preset.preprocess, short_side=96, long_side=160))


@pytest.fixture(scope="module")
def run(tiny_preset):
    """One run: its losses and the detector at its end."""
    history = [(losses, detector) for _, losses, detector in train(TINY, tiny_preset)]
    return [losses for losses, _ in history], history[-1][1]


def test_targets_follow_the_resize():
    scene = {
        "width": 320,
        "height": 240,
        "objects": [{"class": "star", "attributes": ["red", "striped"], "box": [32, 24, 64, 48]}],
    }
    truth = truth_of(scene, height=120, width=480)
    assert truth.boxes.tolist() == [[48, 12, 96, 24]]
    assert truth.classes.tolist() == [CLASSES.index("star")]
    assert truth.attributes.shape == (1, len(ATTRIBUTES) + 1)
    assert truth.attributes[0].nonzero().flatten().tolist() == [ATTRIBUTES.index("red"), ATTRIBUTES.index("striped")]
    assert truth.attributes.sum().item() == 1


def test_the_network_is_trained_on_what_the_extractor_gives_it(tiny_preset):
    rule = tiny_preset.preprocess
    inputs, truths = SceneBatches(TINY, rule)[4]
    image, scene = make_scene(TINY.seed, 4 * TINY.batch, IMAGE_SIZES[4])
    to = frame(rule, *image.shape[:2])
    assert torch.equal(inputs[0], network_input(rule, image, to))
    assert torch.equal(truths[0].boxes, truth_of(scene, *to.size).boxes)


def test_a_batch_is_of_one_size_and_of_its_own_scenes(tiny_preset):
    batches = SceneBatches(TINY, tiny_preset.preprocess)
    inputs, truths = batches[3]
    assert inputs.shape[0] == len(truths) == TINY.batch and min(inputs.shape[2:]) == 96
    again, _ = batches[3]
    assert torch.equal(inputs, again) and not torch.equal(inputs[0], inputs[1])


def test_every_loss_is_there_and_bounded_by_its_target(run, tiny_preset):
    inputs, truths = SceneBatches(TINY, tiny_preset.preprocess)[0]
    torch.manual_seed(0)
    losses = Losses(TINY)(run[1], inputs, truths)
    assert set(losses) == {"objectness", "anchor_box", "class", "box", "attribute"}
    assert all(torch.isfinite(value) and value >= 0 for value in losses.values())
    assert losses["attribute"] > np.log(2) - 1e-3  # the entropy of two equally likely attributes


def test_the_loss_falls(run):
    totals = [sum(losses.values()) for losses in run[0]]
    assert np.mean(totals[-5:]) < 0.9 * np.mean(totals[:5])


def test_the_run_can_be_repeated(run, tiny_preset):
    again = [losses for _, (_, losses, _) in zip(range(5), train(TINY, tiny_preset), strict=False)]
    assert again == run[0][:5]


def test_the_checkpoint_loads_into_the_detector_that_is_used(run, tiny_preset, tmp_path):
    _, trained = run
    path = tmp_path / "tiny.safetensors"
    save_weights(trained, path, {"step": "30"})
    detector = Detector(tiny_preset.architecture)
    load_weights(detector, path)
    trained.eval()
    image = torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(0)) * 50
    with torch.inference_mode():
        torch.testing.assert_close(detector.backbone(image), trained.backbone(image), rtol=1e-4, atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.safetensors"]


def test_held_out_scenes_are_not_trained_on():
    with pytest.raises(ValueError, match="kept for evaluation"):
        next(train(replace(TINY, seed=HELD_OUT_SEED)))
