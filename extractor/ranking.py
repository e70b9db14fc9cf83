"""Orders of RoIs: by their scores, and by the classes in which they survive suppression, all classes at once.

No order depends on the machine when values are equal; a flat picture has thousands of equal logits.

The published systems run one suppression per class, 1600 of them an image, and keep for each RoI its best score over
the classes it survived in. The same result comes from going through all (RoI, class) pairs from the best score down: a
pair survives unless a better surviving RoI of the same class overlaps it, and the first class in which a RoI survives
is the best it ever will. So one can stop as soon as enough different RoIs have survived.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .boxes import pairwise_iou

BLOCK = 512  # pairs looked at together

# (RoIs i64[b], classes i64[b]) -> bool[b,k]: whether each pair's box overlaps RoI j's box of that class too much
Overlaps = Callable[[Tensor, Tensor], Tensor]


def best_places(values: Tensor, count: int) -> Tensor:
    """Places i64[n >= count] of the greatest `values` [m], best first; the earlier place first among equals; count > 0.

    More than `count` come back when values equal the last one that is asked for, fewer when there are fewer. NaN is
    never among them.
    """
    wanted = ~values.isnan()
    if count < len(values):
        wanted &= values >= torch.where(wanted, values, -torch.inf).topk(count, sorted=False).values.min()
    places = torch.nonzero(wanted).squeeze(1)
    return places[torch.sort(values[places], descending=True, stable=True).indices]


def shared_boxes(boxes: Tensor, threshold: float) -> Overlaps:
    """Overlaps where a RoI has one box, f32[k,4], for every class: one IoU matrix serves them all."""
    matrix = pairwise_iou(boxes, boxes).double() > threshold  # double, as torchvision compares
    return lambda rois, _: matrix[rois]


def class_boxes(boxes: Tensor, threshold: float) -> Overlaps:
    """Overlaps where a RoI has a box of its own, f32[k,C,4], for every class."""

    def overlaps(rois: Tensor, classes: Tensor) -> Tensor:
        own = boxes[rois, classes].unsqueeze(1)
        return pairwise_iou(own, boxes[:, classes].transpose(0, 1)).squeeze(1).double() > threshold

    return overlaps


def rank_by_survival(scores: Tensor, overlaps: Overlaps, enough: int) -> tuple[Tensor, Tensor]:
    """RoIs by the best score with which they survive in any class.

    Args:
        scores: f32[k,C], each RoI's probability of each class, at least 0; a RoI with 0 does not survive.
        overlaps: which RoIs suppress each other in a class.
        enough: stop after that many RoIs.

    Returns:
        RoIs i64[n], best first, and their scores f32[n]; of equal scores the earlier RoI, then the earlier class, wins.
    """
    rois, classes = scores.shape
    best = scores.new_zeros(rois)  # of each RoI over the classes it survived in so far; 0 means none yet
    suppressed = torch.zeros(classes, rois, dtype=torch.int16, device=scores.device)  # by how many survivors
    flat = scores.reshape(-1)
    done, taken = 0, min(8 * BLOCK, flat.numel())
    while done < flat.numel() and int((best > 0).sum()) < enough:
        order = best_places(flat, taken)
        for pairs in order[done:].split(BLOCK):
            values = flat[pairs]
            if not values[0] > 0:
                return _ranking(best, enough)
            survivors = _survivors(pairs // classes, pairs % classes, suppressed, overlaps)
            pairs, values = pairs[survivors], values[survivors]
            # best pairs come first, so a RoI that has a score already keeps it
            fresh = torch.zeros_like(best).scatter_reduce(0, pairs // classes, values, "amax")
            best = torch.where(best > 0, best, fresh)
            if int((best > 0).sum()) >= enough:
                break
        done, taken = len(order), min(4 * len(order), flat.numel())
    return _ranking(best, enough)


def _survivors(rois: Tensor, classes: Tensor, suppressed: Tensor, overlaps: Overlaps) -> Tensor:
    """bool[b]: which pairs, best first, survive; adds what they suppress to the table."""
    rows = overlaps(rois, classes)
    free = suppressed[classes, rois] == 0
    conflict = (rows[:, rois] & (classes[:, None] == classes[None])).triu_(1)  # [i,j]: i, if it survives, ends j
    survive = free
    while True:  # settles at least one more pair each time, in practice all within a few
        again = free & ~(conflict & survive[:, None]).any(dim=0)
        if torch.equal(again, survive):
            break
        survive = again
    suppressed.index_add_(0, classes[survive], rows[survive].to(torch.int16))
    return survive


def _ranking(best: Tensor, enough: int) -> tuple[Tensor, Tensor]:
    values, order = torch.sort(best, descending=True, stable=True)
    count = min(enough, int((best > 0).sum()))
    return order[:count], values[:count]
