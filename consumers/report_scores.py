"""Scores by what they are of, and those that follow from others: averages, areas below few-shot curves, gains.

Nothing is rounded on the way. Averages are over languages, unweighted and without English, and only of all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from .metrics import few_shot_auc
from .published import Place
from .tasks import load_task

AUC, GAIN, GAIN_PRINTED = "_auc", "_gain", "_gain_printed"


class Estimate(NamedTuple):
    """Mean over runs that differ in nothing but their weights; `deviation` is that of the sample, None of one run."""

    value: float
    deviation: float | None
    runs: int


@cache
def few_shot_samples(task: str) -> dict[str, int]:
    """Shots -> training samples, of the few-shot sets that every language has which has any; the fewest first."""
    sets = [(one, count.rows) for one, count in load_task(task, ".").counts.items() if one.shots]
    languages = {one.language for one, _ in sets}
    samples = {one.shots: rows for one, rows in sets}
    return {
        shots: rows
        for shots, rows in sorted(samples.items(), key=lambda item: item[1])
        if languages == {one.language for one, _ in sets if one.shots == shots}
    }


@cache
def languages_of(task: str, setup: str) -> tuple[str, ...]:
    """Languages that an average is over: those tested but English; of few shots, those that have few-shot sets."""
    known = load_task(task, ".")
    with_sets = {one.language for one in known.counts if one.shots}
    return tuple(one for one in known.languages if one != "en" and (one in with_sets or setup != "few-shot"))


class Scores:
    """What was measured, and what follows from it.

    The first, second, ... score of the same model and place belong to one run of everything each: that is how seeds are
    told apart, and what an average of a run is made of.
    """

    def __init__(self, found: Iterable[tuple[str, Place, float]] = ()):
        self.measured: dict[tuple[str, Place], list[float]] = {}
        self._runs: dict[str, int] = {}
        for model, place, value in found:
            values = self.measured.setdefault((model, place), [])
            values.append(value)
            self._runs[model] = max(self._runs.get(model, 0), len(values))

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.measured))

    @property
    def places(self) -> list[Place]:
        return list(dict.fromkeys(place for _, place in self.measured))

    def get(self, model: str, place: Place) -> Estimate | None:
        """None: it was not measured, or a part of it was not."""
        found = (self._of(model, place, run) for run in range(self._runs.get(model, 0)))
        values = [value for value in found if value is not None]
        if not values:
            return None
        return Estimate(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def curve(self, model: str, place: Place, run: int = 0) -> list[tuple[int, float]]:
        """(training samples, score) of a few-shot curve from 0 on, as far as it was measured."""
        points = {0: self._of(model, place._replace(setup="zero-shot", shots="0"), run)}
        if place.language == "avg":  # over the languages with few-shot sets, with no shots too
            zero = place._replace(setup="zero-shot", shots="0")
            points = {0: self._mean(model, zero, run, languages_of(place.task, "few-shot"))}
        for shots, samples in few_shot_samples(place.task).items():
            points[samples] = self._of(model, place._replace(setup="few-shot", shots=shots), run)
        return [(samples, value) for samples, value in points.items() if value is not None]

    def _of(self, model: str, place: Place, run: int) -> float | None:
        values = self.measured.get((model, place))
        if values is not None:
            return values[run] if run < len(values) else None
        for ending, rule in ((AUC, self._auc), (GAIN_PRINTED, self._gain_printed), (GAIN, self._gain)):
            if place.metric.endswith(ending):
                return rule(model, place._replace(metric=place.metric.removesuffix(ending)), run)
        if place.language in ("avg", "avg+en"):
            languages = languages_of(place.task, place.setup)
            return self._mean(model, place, run, (*languages, "en") if place.language == "avg+en" else languages)
        return None

    def _mean(self, model: str, place: Place, run: int, languages: Iterable[str]) -> float | None:
        values = [self._of(model, place._replace(language=one), run) for one in languages]
        return None if not values or None in values else math.fsum(values) / len(values)

    def _auc(self, model: str, place: Place, run: int) -> float | None:
        points = self.curve(model, place, run)
        return few_shot_auc(points) if len(points) == len(few_shot_samples(place.task)) + 1 > 1 else None

    def _gain(self, model: str, place: Place, run: int) -> float | None:
        """The most shots minus none, over the languages that have few-shot sets."""
        points = self.curve(model, place, run)
        return points[-1][1] - points[0][1] if len(points) == len(few_shot_samples(place.task)) + 1 > 1 else None

    def _gain_printed(self, model: str, place: Place, run: int) -> float | None:
        """The average of the most shots minus that of none over all languages tested, both to two decimals."""
        most = self._of(model, place, run)
        none = self._of(model, place._replace(setup="zero-shot", shots="0"), run)
        return None if most is None or none is None else round(most, 2) - round(none, 2)
