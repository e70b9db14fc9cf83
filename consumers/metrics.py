"""Accuracy and recall as the benchmark publishes them: percent of whole counts, never rounded on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cache import DataError

RECALL_AT = (1, 5, 10)


def percent(right: float, total: int) -> float:
    """100 * (right / total), in this order, which the published figures share to the last bit; 0 of 0 is 0."""
    return 100 * (right / total) if total else 0.0


def ranks(scores: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places, from 0, of the right pictures and captions in a score matrix.

    Equal scores are ranked by index, lower first, so that a constant matrix has no luck.

    Args:
        scores: [captions, pictures], higher is better; finite.
        images: i64 [captions], the picture that each caption describes.

    Returns:
        For each caption, the place of its picture among all pictures (i64 [captions]); for each picture, the best
        place of one of its captions among all captions (i64 [pictures]).

    Raises: DataError: the shapes do not fit, a score is not finite, or a picture has no caption.
    """
    captions = np.arange(len(images))
    if scores.ndim != 2 or len(scores) != len(images):
        raise DataError(f"scores of shape {scores.shape} do not fit {len(images)} captions")
    if not np.isfinite(scores).all():
        raise DataError("a score is not finite")
    if len(images) and not np.array_equal(np.unique(images), np.arange(scores.shape[1])):
        raise DataError(f"the {len(images)} captions do not describe each of the {scores.shape[1]} pictures")
    own = scores[captions, images]
    of_images = np.empty(len(images), np.int64)
    of_captions = np.empty(len(images), np.int64)
    for caption, image in enumerate(images):
        row, column = scores[caption], scores[:, image]
        of_images[caption] = np.count_nonzero(row > own[caption]) + np.count_nonzero(row[:image] == own[caption])
        better = np.count_nonzero(column > own[caption]) + np.count_nonzero(column[:caption] == own[caption])
        of_captions[caption] = better
    best = np.full(scores.shape[1], len(images), np.int64)
    np.minimum.at(best, images, of_captions)
    return of_images, best


def listed_ranks(lists: Sequence[Sequence[int]], images: np.ndarray) -> np.ndarray:
    """Place of each caption's picture in its list of pictures, best first; the length of the list when it is not in it.

    Returns: i64 [captions].
    """
    pairs = zip(lists, images.tolist(), strict=True)
    return np.array([found.index(image) if image in found else len(found) for found, image in pairs], np.int64)


def recalls(places: np.ndarray, prefix: str) -> dict[str, float]:
    """Percent of places among the first 1, 5 and 10, as {"ir_r1": ..., "ir_r5": ..., "ir_r10": ...} for prefix "ir"."""
    return {f"{prefix}_r{k}": percent(int(np.count_nonzero(places < k)), len(places)) for k in RECALL_AT}


def rank_summary(places: np.ndarray, prefix: str) -> dict[str, float]:
    """Median (rounded down) and mean place, counted from 1."""
    return {
        f"{prefix}_median": float(np.floor(np.median(places) + 1)),
        f"{prefix}_mean": float(places.mean() + 1),
    }


def few_shot_auc(points: Sequence[tuple[float, float]]) -> float:
    """Area below a few-shot curve, as a share of its width: (number of training samples, score in percent) from 0 on.

    Raises: DataError: fewer than two points, or samples that do not grow from 0.
    """
    x, y = np.array(points, np.float64).T if len(points) else (np.empty(0), np.empty(0))
    if len(x) < 2 or x[0] != 0 or (np.diff(x) <= 0).any():
        raise DataError(f"a few-shot curve needs points at growing numbers of samples from 0 on, not {x.tolist()}")
    return float(np.trapezoid(y, x) / x[-1] if hasattr(np, "trapezoid") else np.trapz(y, x) / x[-1])


def macro_scores(gold: Sequence[int], said: Sequence[int]) -> dict[str, float]:
    """Precision, recall and F1 in percent, as means over the classes that were right or said; 0 where 0 of 0 are."""
    found = []
    for label in sorted({*gold, *said}):
        hits = sum(g == s == label for g, s in zip(gold, said, strict=True))
        precision, recall = percent(hits, list(said).count(label)), percent(hits, list(gold).count(label))
        f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
        found.append((precision, recall, f1))
    means = np.mean(found, axis=0).tolist() if found else (0.0, 0.0, 0.0)
    return dict(zip(("precision", "recall", "f1"), means, strict=True))
