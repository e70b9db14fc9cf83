"""Two records of one image: which regions are the same ones, and in what they differ."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from . import boxes as box
from .boxes import HALF_A_PIXEL, Relation
from .regions import FEATURE_DTYPES, Regions

SAME = 0.9995  # cosine of features that the same network made of the same pixels
PROPORTIONAL = 0.99999  # cosine of features that differ by a factor and rounding
HALF_OF_THEM = 0.5  # share of the smaller record that has to be matched by features
_SUBNORMAL = 6e-8  # step of the smallest float16 numbers
UNIT_NORM = 2e-3  # how far the norms of normalised float16 features are from 1
MOVED = 0.95  # IoU under which boxes differ by more than the arithmetic that features differ by
EQUAL_BOXES = "in equal boxes"
MOST_ROWS = 2048  # regions of a record that are looked at; the pairs of rows are its square


@dataclass
class Pair:
    """What was found about one image.

    Attributes:
        image: "same", "turned" (width and height swapped), "resized", "other_file" (the files' digests differ) or
            "other_size".
        regions: numbers of regions of A and of B.
        matched_by: "rows" (the boxes are equal, row by row), "features" (equal features), "boxes" (they overlap) or
            "nothing".
        rows_a, rows_b: the regions that were matched.
        selection: "same", "reordered", "first" (the first rows of the larger record), "part" (others of them),
            "mean_row" (one has the mean region besides), "overlap" or "unknown" (matching by boxes cannot tell);
            `smaller` is the side whose regions are fewer.
        boxes: how those of B come from those of A; "moved" are boxes of equal features that differ one by one, "near"
            such that differ by little.
        features: "equal", "rounded", "normalised", "factor", "clamped", "close", "different" or "none";
            `features_note` says more, `features_side` which is the special one.
        columns: (d of A, d of B).
        cosines, ious: f64 of the matched regions; `strangers` the mean cosine of regions that do not belong together,
            None where there are no two.
        means: unit vectors f64[d], the direction of the mean feature of A and of B; None for a record without regions.
        differences: f64, norm of the difference over the norm, of matched regions.
    """

    image: str
    regions: tuple[int, int]
    matched_by: str = "rows"
    rows_a: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    rows_b: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    selection: str = "same"
    smaller: str = ""
    boxes: Relation = Relation("equal")
    features: str = "none"
    features_side: str = ""
    features_note: str = ""
    columns: tuple[int, int] = (0, 0)
    cosines: np.ndarray = field(default_factory=lambda: np.empty(0))
    ious: np.ndarray = field(default_factory=lambda: np.empty(0))
    differences: np.ndarray = field(default_factory=lambda: np.empty(0))
    strangers: float | None = None
    means: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def equal(self) -> bool:
        """Nothing differs but, perhaps, ids, scores and dtypes."""
        return (
            self.image == "same" and self.selection == "same" and self.boxes.name == "equal"
            and self.features in ("equal", "none")
            and (self.columns[0] == self.columns[1] or self.regions == (0, 0))
        )  # fmt: skip


def compare_pair(a: Regions, b: Regions) -> Pair:
    """Match the regions of two records and say how boxes and features relate."""
    pair = Pair(_images(a, b), (len(a), len(b)), columns=(a.features.shape[1], b.features.shape[1]))
    if not (len(a) and len(b)):
        pair.selection = "same" if len(a) == len(b) else "unknown"
        pair.smaller = "" if len(a) == len(b) else ("a" if len(a) < len(b) else "b")
        return pair
    one, two = (x.features[:MOST_ROWS].astype(np.float32, copy=False) for x in (a, b))
    columns = min(one.shape[1], two.shape[1])
    one, two = one[:, :columns], two[:, :columns]
    pair.means = _direction(one), _direction(two)
    cosine = _unit(one) @ _unit(two).T
    _match(pair, a, b, cosine)
    i, j = pair.rows_a, pair.rows_b
    pair.cosines = cosine[i, j].astype(np.float64)
    if len(i) > 1:
        others = cosine[np.ix_(i, j)]
        pair.strangers = float((others.sum() - np.trace(others)) / (others.size - len(i)))
    _relate_features(pair, one[i], two[j])
    if not len(i):
        pair.matched_by = "nothing"
    if pair.features == "different" and pair.matched_by == "rows":
        pair.features_note = EQUAL_BOXES
    if pair.matched_by == "features" and pair.boxes.name == "other":
        moved = pair.features != "close" or np.median(pair.ious) < MOVED
        pair.boxes = Relation("moved" if moved else "near")
    if pair.features == "close" and pair.boxes == Relation("rounded", "", HALF_A_PIXEL):
        pair.boxes = Relation("near")  # not rounded: made by the same arithmetic as the features
    return pair


def _images(a: Regions, b: Regions) -> str:
    if (a.width, a.height) == (b.width, b.height):
        differ = a.source_digest and b.source_digest and a.source_digest != b.source_digest
        return "other_file" if differ else "same"
    if (a.width, a.height) == (b.height, b.width):
        return "turned"
    slack = 1 / min(a.width, a.height, b.width, b.height)
    return "resized" if abs(a.width * b.height / (a.height * b.width) - 1) < 2 * slack else "other_size"


def _match(pair: Pair, a: Regions, b: Regions, cosine: np.ndarray) -> None:
    """Which regions belong together: by equal boxes, else by equal features, else by boxes that overlap."""
    n, m = cosine.shape
    if n == m and np.abs(a.boxes[:n] - b.boxes[:m]).max() <= box.EXACT:
        pair.rows_a = pair.rows_b = np.arange(n)
        pair.ious = np.ones(n)
        return
    rows_a, rows_b = box.mutual_best(cosine.astype(np.float64))
    same = cosine[rows_a, rows_b] >= SAME
    if same.sum() >= HALF_OF_THEM * min(n, m):
        pair.matched_by, pair.rows_a, pair.rows_b = "features", rows_a[same], rows_b[same]
        pair.boxes = box.relation(a, b, pair.rows_a, pair.rows_b)
        pair.ious = np.array([box.iou(a.boxes[[i]], b.boxes[[j]])[0, 0] for i, j in zip(rows_a, rows_b, strict=True)])
        pair.ious = pair.ious[same]
        _relate_selection(pair, a, b)
        return
    pair.matched_by, pair.selection = "boxes", "unknown"
    pair.boxes, pair.rows_a, pair.rows_b, pair.ious = box.by_boxes(_head(a), _head(b))


def _head(regions: Regions) -> Regions:
    return regions if len(regions) <= MOST_ROWS else Regions.trusted(
        key=regions.key, width=regions.width, height=regions.height,
        boxes=regions.boxes[:MOST_ROWS], features=regions.features[:MOST_ROWS],
    )  # fmt: skip


def _relate_selection(pair: Pair, a: Regions, b: Regions) -> None:
    n, m = (min(count, MOST_ROWS) for count in pair.regions)
    matched = len(pair.rows_a)
    pair.smaller = "" if n == m else ("a" if n < m else "b")
    if matched == n == m:
        pair.selection = "same" if (pair.rows_a == pair.rows_b).all() else "reordered"
    elif matched == min(n, m):
        larger, rows = (b, pair.rows_b) if n < m else (a, pair.rows_a)
        rest = np.setdiff1d(np.arange(max(n, m)), rows)
        if len(rest) == 1 and _is_mean(larger, int(rest[0])):
            pair.selection = "mean_row"
        else:
            pair.selection = "first" if (np.sort(rows) == np.arange(matched)).all() else "part"
    else:
        pair.selection, pair.smaller = "overlap", ""


def _is_mean(regions: Regions, row: int) -> bool:
    """Whether a region is the mean of the others with the whole image as its box."""
    rest = np.delete(np.arange(len(regions)), row)
    whole = [0, 0, regions.width, regions.height]
    if not len(rest) or np.abs(regions.boxes[row] - whole).max() > 1:
        return False
    features = regions.features.astype(np.float64)
    mean = features[rest].mean(axis=0)
    return np.linalg.norm(features[row] - mean) <= 0.01 * max(np.linalg.norm(mean), 1e-12)


def _relate_features(pair: Pair, one: np.ndarray, two: np.ndarray) -> None:
    """How the features f32[k,d] of matched regions relate."""
    if not len(one):
        return
    norms = [np.linalg.norm(x.astype(np.float64), axis=1) for x in (one, two)]
    pair.differences = np.linalg.norm(one - two, axis=1) / np.maximum(np.maximum(*norms), 1e-12)
    if np.array_equal(one, two):
        pair.features = "equal"
        return
    for name, ulp in (("float16", 2.0**-10), ("bfloat16", 2.0**-7)):
        exact = [np.array_equal(x, _rounded(x, name)) for x in (one, two)]
        if exact[0] != exact[1] and np.allclose(one, two, rtol=ulp, atol=_SUBNORMAL):
            pair.features, pair.features_side, pair.features_note = "rounded", "a" if exact[0] else "b", name
            return
    used = np.minimum(*norms) > 0
    ratio = norms[1][used] / norms[0][used]
    if used.any() and (pair.cosines[used] >= PROPORTIONAL).all():
        unit = [np.abs(x[used] - 1).max() <= UNIT_NORM for x in norms]
        steady = np.abs(ratio / ratio.mean() - 1).max() <= UNIT_NORM
        if unit[0] != unit[1]:
            pair.features, pair.features_side = "normalised", "a" if unit[0] else "b"
            return
        if steady and abs(ratio.mean() - 1) > 2 * UNIT_NORM:
            pair.features, pair.features_note = "factor", f"B = {ratio.mean():.4g} x A"
            return
    for side, signed, other in (("a", two, one), ("b", one, two)):
        if (signed < 0).any() and np.allclose(np.maximum(signed, 0), other, rtol=2e-3, atol=1e-6):
            pair.features, pair.features_side = "clamped", side
            return
    pair.features = "close" if np.median(pair.cosines) >= SAME else "different"


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(FEATURE_DTYPES[dtype]).astype(np.float32)


def _unit(features: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
        return features / np.maximum(norms, 1e-12)[:, None].astype(np.float32)


def _direction(features: np.ndarray) -> np.ndarray:
    mean = features.mean(axis=0, dtype=np.float64)
    return mean / max(np.linalg.norm(mean), 1e-12)
