"""How good the `demo` detector is on held-out scenes: average precision from what a record stores, and more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torchvision.ops import box_iou

from cache import Regions

from .detector import Detector
from .extractor import Extractor, load_extractor
from .presets import DEMO
from .roi_heads import BoxPredictor
from .scenes import ATTRIBUTES, CLASSES, COLORS, HELD_OUT_SEED, make_scene
from .weights import load_weights, weights_path


def average_precision(scores: np.ndarray, correct: np.ndarray, positives: int) -> float:
    """Area under the interpolated precision-recall curve, at every recall reached (PASCAL VOC 2010 and later).

    Args:
        scores: f[n], confidence of each detection.
        correct: bool[n], whether it found an object not yet found.
        positives: how many objects there are; NaN is returned for 0.
    """
    if positives == 0:
        return float("nan")
    found = np.cumsum(correct[np.argsort(-scores, kind="stable")])
    if len(found) == 0:
        return 0.0
    precision = found / np.arange(1, len(found) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    recall = found / positives
    return float((np.diff(recall, prepend=0.0) * envelope).sum())


def match_detections(boxes: np.ndarray, scores: np.ndarray, truth: np.ndarray, iou: float = 0.5) -> np.ndarray:
    """For each detection f[n,4] the object f[m,4] it finds, or -1: i64[n].

    Best score first; a detection claims the object it overlaps most when that is at least `iou` and not yet claimed.
    """
    match = np.full(len(boxes), -1)
    if len(boxes) == 0 or len(truth) == 0:
        return match
    overlaps = box_iou(torch.from_numpy(boxes).double(), torch.from_numpy(truth).double()).numpy()
    free = np.ones(len(truth), bool)
    for row in np.argsort(-scores, kind="stable"):
        best = overlaps[row].argmax()
        if overlaps[row, best] >= iou and free[best]:
            match[row], free[best] = best, False
    return match


def detection_quality(records: Sequence[Regions], scenes: Sequence[dict]) -> dict[str, float]:
    """AP50 per class and its mean, and the attribute accuracy of detected objects, from stored regions alone.

    The attribute of a region that matches an object of its class counts as right when the object has it.
    """
    scores: list[list[np.ndarray]] = [[] for _ in CLASSES]
    correct: list[list[np.ndarray]] = [[] for _ in CLASSES]
    positives = np.zeros(len(CLASSES), int)
    attributes: list[bool] = []
    for regions, scene in zip(records, scenes, strict=True):
        for class_id, name in enumerate(CLASSES):
            objects = [obj for obj in scene["objects"] if obj["class"] == name]
            truth = np.array([obj["box"] for obj in objects], np.float32).reshape(-1, 4)
            rows = np.flatnonzero(regions.class_ids == class_id)
            match = match_detections(regions.boxes[rows], regions.class_probs[rows], truth)
            scores[class_id].append(regions.class_probs[rows])
            correct[class_id].append(match >= 0)
            positives[class_id] += len(objects)
            for row, owner in zip(rows[match >= 0], match[match >= 0], strict=True):
                attributes.append(ATTRIBUTES[regions.attr_ids[row]] in objects[owner]["attributes"])
    per_class = {
        name: average_precision(np.concatenate(s), np.concatenate(c), n)
        for name, s, c, n in zip(CLASSES, scores, correct, positives, strict=True)
    }
    quality = {"ap50": float(np.nanmean(list(per_class.values())))}
    quality["attribute_accuracy"] = float(np.mean(attributes)) if attributes else 0.0
    return quality | {f"ap50_{name}": value for name, value in per_class.items()}


def description_quality(
    extractor: Extractor, predictor: BoxPredictor, images: Sequence[np.ndarray], scenes: Sequence[dict]
) -> dict[str, float]:
    """Accuracies on ground-truth boxes: class, and colour and texture each among their own names, given that class."""
    colors = len(COLORS)
    right = {"class_accuracy": 0, "color_accuracy": 0, "texture_accuracy": 0}
    total = 0
    boxes = [np.array([obj["box"] for obj in scene["objects"]], np.float32) for scene in scenes]
    for record, scene in zip(extractor(images, boxes=boxes), scenes, strict=True):
        with torch.inference_mode():
            features = torch.from_numpy(np.asarray(record.features, np.float32))
            class_ids = predictor(features)[0][:, :-1].argmax(dim=1)
            logits = predictor.attribute_logits(features, class_ids)[:, :-1]
        found_colors = logits[:, :colors].argmax(dim=1).tolist()
        found_textures = (logits[:, colors:].argmax(dim=1) + colors).tolist()
        for i, obj in enumerate(scene["objects"]):
            color, texture = obj["attributes"]
            right["class_accuracy"] += CLASSES[class_ids[i]] == obj["class"]
            right["color_accuracy"] += ATTRIBUTES[found_colors[i]] == color
            right["texture_accuracy"] += ATTRIBUTES[found_textures[i]] == texture
        total += len(scene["objects"])
    return {name: count / total for name, count in right.items()}


def evaluate(weights: Path | None = None, count: int = 500, seed: int = HELD_OUT_SEED) -> dict[str, float]:
    """Every measure of a checkpoint (default: the one that ships) over the first `count` scenes of a series."""
    extractor = load_extractor(DEMO.name, weights, device="cpu", precision="float32")
    detector = Detector(DEMO.architecture)
    load_weights(detector, weights_path(DEMO, weights))
    images, scenes = zip(*(make_scene(seed, index) for index in range(count)), strict=True)
    described = description_quality(extractor, detector.roi_heads.box_predictor, images, scenes)
    return {"scenes": count} | detection_quality(extractor(images), scenes) | described


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m extractor.evaluate_demo", description=__doc__)
    parser.add_argument("--weights", type=Path, help="checkpoint; default: the one that ships")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    options = parser.parse_args(arguments)
    quality = evaluate(options.weights, options.count, options.seed)
    print(json.dumps({name: round(value, 4) for name, value in quality.items()}, indent=1))


if __name__ == "__main__":
    main()
