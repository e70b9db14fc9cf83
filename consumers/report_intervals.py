"""Whether two models differ by more than chance: paired bootstrap over the examples that both were asked.

Examples that share a picture are not independent: drawn one by one, they would give intervals that are too narrow. So
pictures are drawn, each with all of its examples (a cluster bootstrap), unless single examples are asked for, as papers
commonly draw them (Koehn, EMNLP 2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cache import DataError, RoivaultError, UsageError

from .published import Place
from .report_runs import Run, examples_of, hits_of
from .tasks import Example

DRAWS = 10_000
LEVEL = 95  # percent


@dataclass(frozen=True)
class Interval:
    """How much better one model is than another, in points, with the interval that holds 95 % of the draws.

    Attributes:
        n, drawn: examples, and how many independent groups of them were drawn from.
        only: examples that this model alone has right; `other` those that the other alone has.
    """

    model: str
    against: str
    place: Place
    difference: float
    low: float
    high: float
    n: int
    drawn: int
    only: int
    other: int


def paired_bootstrap(
    ours: np.ndarray, others: np.ndarray, groups: np.ndarray, seed: int = 0
) -> tuple[float, float, float]:
    """Difference of two shares in points, and the bounds of its interval.

    A draw takes as many groups as there are, with replacement. Of a group only its size and its sum of differences
    count, so what a draw holds is multinomial over the kinds of them, and drawing counts of kinds is drawing groups.

    Args:
        ours, others: bool [n], which of the same examples are right.
        groups: i64 [n], numbers from 0 of the groups that are drawn as a whole.

    Raises: DataError: the shapes differ, or there are none.
    """
    if ours.shape != others.shape or not len(ours):
        raise DataError(f"{len(ours)} and {len(others)} examples cannot be paired")
    differences = ours.astype(np.int64) - others
    facts = np.stack([np.bincount(groups, differences), np.bincount(groups)], 1)
    kinds, counts = np.unique(facts, axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(facts), counts / len(facts), DRAWS) @ kinds
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(100 * drawn[:, 0] / drawn[:, 1], [tail, 100 - tail])
    return 100 * float(differences.mean()), float(low), float(high)


def groups_of(examples: Sequence[Example], drawn: str = "pictures") -> np.ndarray:
    """Numbers from 0 of the groups that examples are drawn in, i64 [examples]: those that have a picture in common,
    themselves or through others, are one; of "examples" each is one of its own.

    Raises: UsageError.
    """
    if drawn == "examples":
        return np.arange(len(examples))
    if drawn != "pictures":
        raise UsageError(f"intervals are drawn by pictures or by examples, not by {drawn!r}")
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pictures: dict[str, int] = {}
    pairs = [
        (row, len(examples) + pictures.setdefault(keys[0], len(pictures)))
        for row, example in enumerate(examples)
        for keys in example.images
    ]
    size = len(examples) + len(pictures)
    graph = coo_array((np.ones(len(pairs)), tuple(zip(*pairs, strict=True))), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(examples)].astype(np.int64)


def compare(runs: Sequence[Run], against: str, drawn: str = "pictures") -> tuple[list[Interval], list[tuple[str, str]]]:
    """Every model against one of them, wherever both were tested on the same; of several seeds, their first runs.

    Args:
        drawn: see `groups_of`.

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
            (examples, ours), (theirs, others) = hits[run.origin], hits[other.origin]
            if [one.id for one in examples] != [one.id for one in theirs]:
                raise DataError(f"its {len(examples):,} examples are not the {len(theirs):,} of {other.origin}")
            groups = groups_of(examples, drawn)
            found = paired_bootstrap(ours, others, groups)
        except RoivaultError as error:
            failed[run.origin] = str(error)
            continue
        only, alone = int((ours & ~others).sum()), int((~ours & others).sum())
        units = int(groups.max()) + 1
        intervals.append(Interval(model, against, place, *found, len(examples), units, only, alone))
    return intervals, list(failed.items())
