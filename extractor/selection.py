"""Which of a detector's RoIs become the regions of a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import nms

from .boxes import clip_boxes, exclusive, has_area
from .configs import DetectionNMS, MaxClassNMS, PerClassNMS
from .detections import Detections
from .preprocess import Frame
from .ranking import Overlaps, class_boxes, rank_by_survival, shared_boxes


@dataclass(frozen=True)
class Selection:
    """The regions of a record, best first.

    rows i64[n] of the detections; boxes f32[n,4] in pixels of the original image; scores f32[n], what they were ranked
    by, None without ranks; classes i64[n] where a region stands for another class than its most probable one.
    """

    rows: Tensor
    boxes: Tensor
    scores: Tensor | None
    classes: Tensor | None = None

    def of(
        self, found: Detections, complete: Callable[[Detections], Detections] | None = None
    ) -> tuple[Detections, Selection]:
        """The detections that are kept, completed if that is asked for, and this, in the CPU's memory."""
        kept = found[self.rows]
        if self.classes is not None:
            kept = replace(kept, class_ids=self.classes, class_probs=self.scores)
        if complete is not None:
            kept = complete(kept)
        scores = None if self.scores is None else self.scores.cpu()
        return kept.cpu(), Selection(self.rows.cpu(), self.boxes.cpu(), scores)


@singledispatch
def select(rule: Any, found: Detections, frame: Frame) -> Selection:
    """The regions that a preset's selection rule chooses.

    Args:
        rule: decides which function runs; a new kind of rule registers its own with `select.register`.
        found: all RoIs of the image.
        frame: how the boxes relate to the original image.
    """
    raise TypeError(f"there is no selection for a {type(rule).__name__}")


@select.register
def _(rule: MaxClassNMS, found: Detections, frame: Frame) -> Selection:
    rows = select_max_class(found.boxes, found.class_probs, rule)
    boxes = found.boxes[rows] * found.boxes.new_tensor(frame.to_original)
    return Selection(rows, clip_boxes(boxes, frame.height, frame.width), found.class_probs[rows])


@select.register
def _(rule: PerClassNMS, found: Detections, frame: Frame) -> Selection:
    to_original = found.rois.new_tensor(frame.to_original)
    boxes = found.rois * to_original
    if rule.class_boxes:
        overlaps = class_boxes(found.class_boxes * to_original, rule.threshold)
    else:
        overlaps = shared_boxes(exclusive(boxes) if rule.pixel_inclusive else boxes, rule.threshold)
    rows, scores = select_per_class(overlaps, found.class_scores, rule)
    boxes = boxes[rows]
    if rule.clip:
        boxes = clip_boxes(boxes, frame.height, frame.width)
    # an inclusive box that covers a part of one pixel would end before it starts
    return Selection(rows, torch.cat((boxes[:, :2], torch.maximum(boxes[:, :2], boxes[:, 2:])), dim=1), scores)


@select.register
def _(rule: DetectionNMS, found: Detections, frame: Frame) -> Selection:
    rows, boxes, scores, classes = select_detections(found, rule)
    boxes = clip_boxes(boxes * boxes.new_tensor(frame.to_original), frame.height, frame.width)
    return Selection(rows, boxes, scores, classes)


def select_detections(found: Detections, rule: DetectionNMS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RoIs i64[n], their boxes f32[n,4] in resized pixels, scores f32[n] and classes i64[n], best score first.

    What has no area once it is clipped to the image counts among the best, and is then left out, as in detectron2.
    """
    rows, classes = torch.nonzero(found.class_scores > rule.min_score, as_tuple=True)
    scores, boxes = found.class_scores[rows, classes], found.class_boxes[rows, classes]
    keep = nms_per_class(boxes, scores, classes, rule.threshold)[: rule.max_regions]
    keep = keep[has_area(boxes[keep])]
    return rows[keep], boxes[keep], scores[keep], classes[keep]


def nms_per_class(boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float) -> Tensor:
    """Rows i64[n] that survive suppression by boxes f32[k,4] of their own class i64[k], best score first.

    The classes are laid out side by side in double precision, where that does not round the boxes.
    """
    if not len(boxes):
        return classes
    apart = (boxes.max() - boxes.min() + 1).double() * classes
    return nms(boxes.double() + apart[:, None], scores.double(), threshold)


def select_max_class(boxes: Tensor, scores: Tensor, rule: MaxClassNMS) -> Tensor:
    """Rows to keep, best score first.

    Reproduces the selection behind the 36-region Visual Genome features: suppression that ignores classes, on each
    RoI's most probable class box, with the IoU threshold raised until there are enough regions. Where the original
    gives up on images with too few regions, this keeps those there are.

    Args:
        boxes: f32[k,4], one per RoI; those without area are never kept.
        scores: f32[k], probability of each RoI's best class.
        rule: how many to keep, and from which score on.

    Returns:
        i64[n], n at most rule.max_regions.
    """
    candidates = torch.nonzero(has_area(boxes) & torch.isfinite(scores)).squeeze(1)
    keep = candidates[:0]
    for threshold in rule.thresholds:
        keep = candidates[nms(boxes[candidates], scores[candidates], threshold)[: rule.max_regions]]
        if len(keep) == rule.max_regions:
            break
    return keep[: enough(scores[keep], rule)]


def select_per_class(overlaps: Overlaps, scores: Tensor, rule: PerClassNMS) -> tuple[Tensor, Tensor]:
    """Rows to keep and their ranks, best first.

    Reproduces the "10-100 boxes" selection of bottom-up attention (Anderson et al. 2018), and of Pythia and ViLBERT: a
    RoI ranks by its best score among the classes in which no better RoI suppresses it. A RoI that survives in no class
    ranks 0 and comes last, in the order of the RoIs.

    Args:
        overlaps: which RoIs suppress each other, see ranking.py.
        scores: f32[k,C], probability of each foreground class.
        rule: how many to keep, and from which rank on.

    Returns:
        i64[n] and f32[n], n at most rule.max_regions.
    """
    rows, ranks = rank_by_survival(torch.nan_to_num(scores), overlaps, rule.max_regions)
    missing = rule.min_regions - len(rows)
    if missing > 0:
        others = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        others[rows] = False
        rest = torch.nonzero(others).squeeze(1)[:missing]
        rows, ranks = torch.cat((rows, rest)), torch.cat((ranks, ranks.new_zeros(len(rest))))
    count = enough(ranks, rule)
    return rows[:count], ranks[:count]


def enough(ranks: Tensor, rule: MaxClassNMS | PerClassNMS) -> int:
    """How many of the regions with these ranks, best first, a rule keeps."""
    return max(rule.min_regions, int((ranks >= rule.min_score).sum()))
