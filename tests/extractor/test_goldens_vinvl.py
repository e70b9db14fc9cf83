"""Full-size runs of VinVL's detector from a checkpoint file to records, against what scene_graph_benchmark puts out."""

import ast

import numpy as np
import pytest
import torch

from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.presets import get_preset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(golden, golden_weight, tmp_path_factory):
    """The checkpoint as it was published."""
    state = {}
    for line in (golden / "vinvl" / "vinvl_state_dict.txt").read_text().splitlines():
        name, shape = line.split(maxsplit=1)
        if "cell_anchors" in name:
            continue
        source = name.replace("attribute.feature_extractor.", "roi_heads.box.feature_extractor.")
        value = golden_weight(source, ast.literal_eval(shape))
        if name == "attribute.predictor.attr_score.weight":
            value = (value.astype(np.float64) * 6).astype(np.float32)
        state[f"module.{name}"] = torch.from_numpy(value)
    path = tmp_path_factory.mktemp("checkpoints") / "vinvl_vg_x152c4.pth"
    torch.save({"model": state}, path)
    yield path
    path.unlink()


def load(preset, checkpoint):
    return Extractor(get_preset(preset), checkpoint, "cpu", "float32", DecodePolicy())


def assert_same_rows(found, stored, variant):
    """Every region is the stored one; neighbours in score that are closer than 3e-5 may have changed places."""
    theirs = {name: stored[f"{variant}/{name}"] for name in ("boxes", "scores", "labels", "attr_scores", "attr_labels")}
    distance = np.abs(found.boxes[:, None] - theirs["boxes"][None]).max(axis=2)
    distance += 1e3 * (found.class_ids[:, None] + 1 != theirs["labels"][None])
    order = distance.argmin(axis=1)
    assert sorted(order) == list(range(len(theirs["boxes"])))
    np.testing.assert_allclose(theirs["scores"][order], theirs["scores"], atol=3e-5)
    np.testing.assert_allclose(found.boxes, theirs["boxes"][order], atol=0.02)
    np.testing.assert_allclose(found.scores, theirs["scores"][order], atol=2e-5)
    np.testing.assert_allclose(found.features.mean(axis=1), stored[f"{variant}/feat_rowmean"][order], atol=5e-5)
    scores, labels = theirs["attr_scores"][order, 0], theirs["attr_labels"][order, 0]
    shown = scores > 0  # below 0.05 they store neither
    np.testing.assert_array_equal(found.attr_ids[shown] + 1, labels[shown])
    np.testing.assert_allclose(found.attr_probs[shown], scores[shown], atol=2e-5)
    assert (found.attr_probs[~shown] <= 0.05 + 2e-5).all()
    return order


@pytest.mark.parametrize("image", ["syn_1200x300", "syn_480x640"])
def test_detections_by_all_filters_and_given_boxes(golden, checkpoint, image):
    path, stored = golden / "images" / f"{image}.png", np.load(golden / "vinvl" / f"{image}.npz")
    (found,) = load("vinvl-x152", checkpoint)([path])
    assert_same_rows(found, stored, "f1")
    (found,) = load("vinvl-x152-filter2", checkpoint)([path])
    order = assert_same_rows(found, stored, "f2")
    np.testing.assert_allclose(found.features, stored["f2/box_features"][order], atol=5e-5)
    (found,) = load("vinvl-x152-filter0", checkpoint)([path])
    order = np.abs(found.boxes[:, None] - stored["f0/boxes"][None]).max(axis=2)
    assert len(found) == len(stored["f0/boxes"]) and (order.min(axis=1) < 0.02).all()
    np.testing.assert_array_equal(found.class_ids + 1, stored["f0/labels"])


def test_given_boxes(golden, checkpoint):
    stored = np.load(golden / "vinvl" / "given_syn_480x640.npz")
    path = golden / "images" / "syn_480x640.png"
    (found,) = load("vinvl-x152", checkpoint)([path], boxes=[stored["given_boxes"]])
    np.testing.assert_array_equal(found.boxes, stored["given_boxes"])
    np.testing.assert_allclose(found.features, stored["box_features"], atol=5e-5)
    np.testing.assert_array_equal(found.class_ids + 1, stored["labels"])
    np.testing.assert_allclose(found.scores, stored["scores"], atol=2e-5)
    shown = stored["attr_scores"][:, 0] > 0
    np.testing.assert_array_equal(found.attr_ids[shown] + 1, stored["attr_labels"][shown, 0])
