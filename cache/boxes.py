"""How the boxes of two records of one image relate: the same, or the same in another frame or notation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .regions import Regions

EXACT = 0.01  # pixels; less is the rounding of float32
HALF = 0.51  # pixels; what rounding to whole ones changes
HALF_A_PIXEL = "by at most half a pixel"
NEAR = 0.5  # IoU of boxes that mean the same region
LEAST_ROWS = 3  # boxes that an offset has to be common to
RESIZE_RULES = ((800, 1333), (600, 1000), (480, 800))  # short side, most of the long side; published ones
_FRAMES_GAIN = 0.2  # share of regions that must match more for another frame than that of the image
_FRAMES_LEAST = 0.4  # share that must match in it


@dataclass(frozen=True)
class Relation:
    """What makes B's boxes of A's.

    Attributes:
        name: "equal", "rounded", "clipped", "unit", "scaled", "xywh", "yxyx", "offset", "near" or "other".
        side: "a" or "b", the one that is special; "" where that means nothing.
        note: what was measured, in words that are the same for images that agree.
    """

    name: str
    side: str = ""
    note: str = ""


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[n,m] of boxes [n,4] and [m,4]; 0 where both are empty."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=2)
    area_a, area_b = (np.prod(np.clip(x[:, 2:] - x[:, :2], 0, None), axis=1) for x in (a, b))
    return common / np.maximum(area_a[:, None] + area_b[None] - common, 1e-12)


def relation(a: Regions, b: Regions, rows_a: np.ndarray, rows_b: np.ndarray) -> Relation:
    """Of boxes that are known to belong to the same regions: the rows `rows_a` of a and `rows_b` of b."""
    one, two = a.boxes[rows_a].astype(np.float64), b.boxes[rows_b].astype(np.float64)
    if not len(one):
        return Relation("equal")
    off = np.abs(one - two).max()
    if off <= EXACT:
        return Relation("equal")
    if (found := _clipped(one, two, a)) is not None:
        return found
    for name, side, note, mine, theirs in _notations(one, two, a, b):
        if np.abs(mine - theirs).max() <= EXACT * max(1.0, np.abs(theirs).max() / 1000):
            return Relation(name, side, note)
    if (found := _scaled(one, two, a)) is not None:
        return found
    steps = (two - one).mean(axis=0)
    if len(one) >= LEAST_ROWS and np.abs(two - one - steps).max() <= EXACT and np.abs(steps).max() <= 1.5:
        return Relation("offset", note="B = A + (" + ", ".join(f"{step:+.2f}" for step in steps) + ") px")
    if off <= HALF:
        whole = [side for side, boxes in (("a", one), ("b", two)) if (boxes == np.rint(boxes)).all()]
        return Relation("rounded", whole[0] if len(whole) == 1 else "", HALF_A_PIXEL)
    return Relation("other")


def _clipped(one: np.ndarray, two: np.ndarray, image: Regions) -> Relation | None:
    """Equal inside the image, while one set of boxes leaves it."""
    frame = np.array([image.width, image.height] * 2, np.float64)
    for inset in (0.0, 1.0):  # some clip to the last pixel's index
        cut = [np.clip(boxes, 0, frame - inset) for boxes in (one, two)]
        if np.abs(cut[0] - cut[1]).max() <= EXACT:
            reach = [np.abs(boxes - np.clip(boxes, 0, frame)).max() for boxes in (one, two)]
            return Relation("clipped", "a" if reach[0] > reach[1] else "b")
    return None


def _notations(
    one: np.ndarray, two: np.ndarray, a: Regions, b: Regions
) -> Iterator[tuple[str, str, str, np.ndarray, np.ndarray]]:
    """(name, special side, note, A's boxes in some notation, B's in the same): equal if the notations are these."""
    for side, special, plain, image in (("a", one, two, b), ("b", two, one, a)):
        frame = np.array([image.width, image.height] * 2, np.float64)
        yield "unit", side, "shares of the image's sides, 0..1", special * frame, plain
        yield "xywh", side, "x, y, width, height", special, _to_xywh(plain)
    yield "yxyx", "", "y before x", one[:, [1, 0, 3, 2]], two


def _scaled(one: np.ndarray, two: np.ndarray, image: Regions) -> Relation | None:
    """One factor for x and one for y, nearly the same, for all boxes of the image."""
    factors = []
    for axis in (0, 1):
        mine, theirs = one[:, axis::2].ravel(), two[:, axis::2].ravel()
        weight = float(mine @ mine)
        if weight < 1.0:
            return None
        factors.append(float(mine @ theirs) / weight)
    error = np.abs(one * (factors * 2) - two).max()
    if error > max(0.05, 0.0005 * np.abs(two).max()) or abs(factors[0] / factors[1] - 1) > 0.02:
        return None
    if abs(factors[0] - 1) < 0.005:
        return None
    rule, side = _resize_rule(factors[0], image)
    return Relation("scaled", side or ("b" if factors[0] > 1 else "a"), rule)


def _resize_rule(factor: float, image: Regions) -> tuple[str, str]:
    """The published rule whose factor it is, and the side whose boxes are in the resized image."""
    for scale, note in _resizings(image):
        for side, expected in (("b", scale), ("a", 1 / scale)):
            if abs(factor / expected - 1) < 0.005:
                return note, side
    return "by one factor per image", ""


def _resizings(image: Regions) -> Iterator[tuple[float, str]]:
    """The factor of each published rule for an image, and what boxes in the resized image are called."""
    for short_side, long_side in RESIZE_RULES:
        scale = min(short_side / min(image.width, image.height), long_side / max(image.width, image.height))
        yield scale, f"those of an image resized to {short_side}/{long_side}"


def _to_xywh(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def _to_corners(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def by_boxes(a: Regions, b: Regions) -> tuple[Relation, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a and b whose boxes overlap best, in the frame in which most do.

    Returns: that frame ("near" is the image's own), the rows of a, those of b, and the IoU of each pair.
    """
    one, two = a.boxes.astype(np.float64), b.boxes.astype(np.float64)
    best = (Relation("near"), *_mutual(one, two))
    regions = min(len(one), len(two))
    for frame, mine, theirs in _frames(one, two, a, b):
        rows = _mutual(mine, theirs)
        least = 0 if frame.name == "unit" else _FRAMES_LEAST * regions
        if len(rows[0]) >= max(least, len(best[1]) + max(1, _FRAMES_GAIN * regions)):
            best = (frame, *rows)
    return best


def _mutual(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that are each other's best, at an IoU of NEAR or more, and that IoU."""
    overlap = iou(one, two)
    rows_a, rows_b = mutual_best(overlap)
    near = overlap[rows_a, rows_b] >= NEAR
    return rows_a[near], rows_b[near], overlap[rows_a, rows_b][near]


def mutual_best(likeness: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows i and columns j of a matrix [n,m] that are each other's greatest; of equals the one nearest to i = j."""
    if not likeness.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows, columns = np.ogrid[: likeness.shape[0], : likeness.shape[1]]
    likeness = likeness - 1e-9 * np.abs(rows - columns)
    best = likeness.argmax(axis=1)
    mutual = np.flatnonzero(likeness.argmax(axis=0)[best] == np.arange(len(best)))
    return mutual, best[mutual]


def _frames(
    one: np.ndarray, two: np.ndarray, a: Regions, b: Regions
) -> Iterator[tuple[Relation, np.ndarray, np.ndarray]]:
    """(frame, A's boxes, B's boxes), both brought to one frame on the assumption."""
    if not (len(one) and len(two)):
        return
    for side, image, special in (("a", b, one), ("b", a, two)):
        size = np.array([image.width, image.height] * 2, np.float64)
        changed = []
        if special.max() <= 1.5:
            changed.append((Relation("unit", side, "shares of the image's sides, 0..1"), special * size))
        changed.append((Relation("xywh", side, "x, y, width, height"), _to_corners(special)))
        changed += [(Relation("scaled", side, note), special / scale) for scale, note in _resizings(image)]
        for frame, boxes in changed:
            yield (frame, boxes, two) if side == "a" else (frame, one, boxes)
    yield Relation("yxyx", "", "y before x"), one[:, [1, 0, 3, 2]], two
    if (a.width, a.height) != (b.width, b.height):
        factor = np.array([a.width / b.width, a.height / b.height] * 2)
        yield Relation("scaled", "b", "as the image sizes say"), one, two * factor
