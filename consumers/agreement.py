"""How far people who labelled the same items agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cache import DataError


def fleiss_kappa(counts: Sequence[Sequence[int]]) -> float:
    """Fleiss' kappa (Psychological Bulletin 1971): agreement beyond that of chance.

    Args:
        counts: [items, labels], how many of the raters gave an item each label; as many raters for every item.

    Raises: DataError: no items, not the same number of raters, at least 2, or all gave one label, so that it is
        undefined.
    """
    table = np.asarray(counts, np.float64)
    if table.ndim != 2 or not table.size:
        raise DataError("kappa needs items that several people labelled")
    raters = table.sum(1)
    if (raters != raters[0]).any() or raters[0] < 2:
        raise DataError(f"kappa needs as many labels of every item, two at least, not {sorted(set(raters.tolist()))}")
    n = raters[0]
    shares = table.sum(0) / table.sum()
    expected = float((shares**2).sum())
    if expected == 1:
        raise DataError("kappa is undefined where all labels are the same")
    observed = float((((table**2).sum(1) - n) / (n * (n - 1))).mean())
    return (observed - expected) / (1 - expected)


def disagreement(counts: Sequence[int]) -> float:
    """The chance that two people drawn from those who labelled an item gave it different labels.

    Args:
        counts: how many gave each label; two people at least.
    """
    n = sum(counts)
    if n < 2:
        raise DataError(f"nobody can disagree among {n} people")
    return 1 - sum(count * (count - 1) for count in counts) / (n * (n - 1))
