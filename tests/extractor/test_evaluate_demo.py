"""The evaluator is what the model card rests on, so its arithmetic is checked by hand; then the shipped weights."""

from __future__ import annotations

import math
from importlib.resources import files

import numpy as np
import pytest

from cache import Regions
from extractor.evaluate_demo import average_precision, detection_quality, evaluate, match_detections
from extractor.presets import DEMO
from extractor.scenes import ATTRIBUTES, CLASSES
from extractor.weights import file_sha256, weights_path


def test_average_precision_of_a_perfect_ranking_is_one():
    assert average_precision(np.array([0.2, 0.9]), np.array([True, True]), 2) == 1.0


def test_average_precision_by_hand():
    # ranked: hit, miss, hit, miss; three objects. precision at the hits 1 and 2/3, one object never found
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    assert average_precision(scores, np.array([True, False, True, False]), 3) == pytest.approx(1 / 3 + 2 / 3 / 3)


def test_average_precision_interpolates_and_knows_its_ends():
    # misses first: precision 1/2 then 2/3; the envelope lifts the first to 2/3
    assert average_precision(np.array([0.9, 0.8, 0.7]), np.array([False, True, True]), 2) == pytest.approx(2 / 3)
    assert average_precision(np.zeros(0), np.zeros(0, bool), 2) == 0.0
    assert math.isnan(average_precision(np.array([0.5]), np.array([False]), 0))


def test_an_object_is_found_once_and_by_the_best_score():
    truth = np.array([[0, 0, 10, 10], [20, 20, 30, 30]], np.float32)
    boxes = np.array([[0, 0, 10, 9], [0, 0, 10, 10], [21, 20, 31, 30], [50, 50, 60, 60]], np.float32)
    match = match_detections(boxes, np.array([0.5, 0.9, 0.8, 0.7]), truth)
    assert match.tolist() == [-1, 0, 1, -1]
    assert match_detections(boxes, np.ones(4), truth[:0]).tolist() == [-1] * 4
    assert len(match_detections(boxes[:0], np.ones(0), truth)) == 0


def test_detection_quality_counts_classes_and_attributes():
    objects = [
        {"class": CLASSES[0], "attributes": ["red", "plain"], "box": [0, 0, 10, 10]},
        {"class": CLASSES[1], "attributes": ["blue", "dotted"], "box": [20, 20, 40, 40]},
    ]
    regions = Regions(
        key="0",
        width=60,
        height=60,
        boxes=np.array([[0, 0, 10, 10], [20, 20, 40, 40], [20, 20, 40, 40]], np.float32),
        features=np.zeros((3, 2), np.float32),
        class_ids=np.array([0, 1, 2], np.int32),
        class_probs=np.array([0.9, 0.8, 0.7], np.float32),
        attr_ids=np.array([ATTRIBUTES.index(name) for name in ("plain", "green", "blue")], np.int32),
        attr_probs=np.ones(3, np.float32),
    )
    quality = detection_quality([regions], [{"objects": objects}])
    assert quality["ap50"] == 1.0 and quality["attribute_accuracy"] == 0.5
    assert math.isnan(quality[f"ap50_{CLASSES[2]}"])  # no such object: not part of the mean


def test_the_shipped_weights_find_what_is_drawn():
    quality = evaluate(count=8)
    assert quality["ap50"] >= 0.7 and quality["attribute_accuracy"] >= 0.85


@pytest.mark.slow
def test_the_shipped_weights_reach_the_stated_quality():
    quality = evaluate(count=60)  # the model card states 500 scenes; on 60 the measures vary by a few hundredths
    assert quality["ap50"] >= 0.86
    assert quality["attribute_accuracy"] >= 0.95
    assert quality["class_accuracy"] >= 0.88
    assert quality["color_accuracy"] >= 0.94
    assert quality["texture_accuracy"] >= 0.84


def test_the_model_card_is_about_the_shipped_file():
    card = files("extractor").joinpath("data", "demo.md").read_text(encoding="utf-8")
    assert file_sha256(weights_path(DEMO)) in card
