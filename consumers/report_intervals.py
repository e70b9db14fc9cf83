"""Whether two models differ by more than chance: paired bootstrap over the examples that both were asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cache import DataError, RoivaultError, UsageError

from .published import Place
from .report_runs import Run, examples_of, hits_of

DRAWS = 10_000
LEVEL = 95  # percent


@dataclass(frozen=True)
class Interval:
    """How much better one model is than another, in points, with the interval that holds 95 % of the draws.

    Attributes:
        only: examples that this model alone has right; `other` those that the other alone has.
    """

    model: str
    against: str
    place: Place
    difference: float
    low: float
    high: float
    n: int
    only: int
    other: int


def paired_bootstrap(ours: np.ndarray, others: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Difference of two shares in points, and the bounds of its interval.

    A draw takes n examples with replacement. Of an example only the difference counts, 1, 0 or -1, so what a draw holds
    is multinomial, and drawing those three counts is drawing the examples.

    Args:
        ours, others: bool [n], which of the same examples are right.

    Raises: DataError: the shapes differ, or there are none.
    """
    if ours.shape != others.shape or not len(ours):
        raise DataError(f"{len(ours)} and {len(others)} examples cannot be paired")
    n, more, fewer = len(ours), int((ours & ~others).sum()), int((~ours & others).sum())
    counts = np.random.default_rng(seed).multinomial(n, [more / n, fewer / n, (n - more - fewer) / n], DRAWS)
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(100 * (counts[:, 0] - counts[:, 1]) / n, [tail, 100 - tail])
    return 100 * (more - fewer) / n, float(low), float(high)


def compare(runs: Sequence[Run], against: str) -> tuple[list[Interval], list[tuple[str, str]]]:
    """Every model against one of them, wherever both were tested on the same; of several seeds, their first runs.

    Returns: the intervals, and (where, why) of the runs that could not be compared.

    Raises: UsageError: there is no such model.
    """
    first: dict[tuple[str, Place], Run] = {}
    for run in runs:
        first.setdefault((run.model, run.place("accuracy" if "accuracy" in run.result else "ir_r1")), run)
    if against not in {model for model, _ in first}:
        raise UsageError(f"--against {against!r} is not one of {', '.join(dict.fromkeys(m for m, _ in first))}")
    gold, hits, intervals, failed = cache(examples_of), {}, [], {}
    for (model, place), run in first.items():
        other = first.get((against, place))
        if model == against or other is None:
            continue
        try:
            for one in (run, other):
                hits[one.origin] = hits.get(one.origin) or hits_of(one, gold)
            (ids, ours), (other_ids, others) = hits[run.origin], hits[other.origin]
            if ids != other_ids:
                raise DataError(f"its {len(ids):,} examples are not the {len(other_ids):,} of {other.origin}")
        except RoivaultError as error:
            failed[run.origin] = str(error)
            continue
        found = paired_bootstrap(ours, others)
        only, alone = int((ours & ~others).sum()), int((~ours & others).sum())
        intervals.append(Interval(model, against, place, *found, len(ids), only, alone))
    return intervals, list(failed.items())
