"""Which of a detector's RoIs become the regions of a record."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import nms

from .boxes import has_area
from .presets import MaxClassNMS


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
    enough = max(rule.min_regions, int((scores[keep] >= rule.min_score).sum()))
    return keep[:enough]
