"""Do differences of a metric go with what people prefer? As Crossmodal-3600 was validated (Thapliyal et al., EMNLP
2022): people see captions of two models side by side, and for each language and pair of models the share of pictures
where one is preferred, less that where the other is, is held against the difference of the models' CIDEr.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cache import DataError

from .metrics import percent
from .report_runs import read_runs
from .tasks.files import open_text

FEWEST = 3  # points of a correlation
TASK = "xm3600-captions"
PAIR = ("model_a", "model_b", "language")
VOTES = ("prefer_a", "prefer_b", "same")

Scores = Mapping[tuple[str, str], float]  # of (model, language)


@dataclass(frozen=True)
class Judgement:
    """How often people preferred captions of one model and of the other, or neither, in a language."""

    model_a: str
    model_b: str
    language: str
    prefer_a: int
    prefer_b: int
    same: int

    @property
    def gain(self) -> float:
        """Of the second model over the first, from -100 to 100."""
        return percent(self.prefer_b - self.prefer_a, self.prefer_a + self.prefer_b + self.same)


@dataclass(frozen=True)
class Agreement:
    """Of differences of a metric and gains; None where there are too few, or one side is the same in all.

    Attributes:
        same_sign: percent of the pairs in which both name the same model as the better one.
    """

    n: int
    same_sign: float
    pearson: float | None = None
    pearson_p: float | None = None
    spearman: float | None = None
    spearman_p: float | None = None
    kendall: float | None = None
    kendall_p: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All pairs and languages together, each pair of models over its languages, and what has no score."""

    together: Agreement
    pairs: Mapping[tuple[str, str], Agreement]
    points: Sequence[tuple[Judgement, float]]
    missing: Sequence[tuple[str, str]]


def read_judgements(path: Path) -> list[Judgement]:
    """A CSV file with the columns model_a, model_b, language, prefer_a, prefer_b and same, which count pictures.

    Raises: InputNotFound; DataError: a row lacks a column, counts nothing, or comes twice.
    """
    found: dict[tuple[str, ...], Judgement] = {}
    for row, record in enumerate(_rows(path), 2):
        try:
            pair = tuple(record[name].strip() for name in PAIR)
            votes = [int(record[name]) for name in VOTES]
        except (KeyError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, line {row}: wanted are {', '.join((*PAIR, *VOTES))} ({error!r})") from error
        if min(votes) < 0 or not sum(votes):
            raise DataError(f"{path}, line {row}: there are no judgements in {votes}")
        if pair in found:
            raise DataError(f"{path}, line {row}: {' and '.join(pair[:2])} are compared in {pair[2]} twice")
        found[pair] = Judgement(*pair, *votes)
    if not found:
        raise DataError(f"{path} has no judgements")
    return list(found.values())


def read_scores(where: Sequence[str], metric: str) -> Scores:
    """Scores of models by language: of results of `evaluate`, each path with NAME= before it to rename the model, or of
    CSV files with the columns model, language and the metric's name.

    Raises: InputNotFound; DataError: there are none, or two of one model in one language that differ.
    """
    found: dict[tuple[str, str], float] = {}
    files = [one for one in where if one.endswith(".csv")]
    for path in map(Path, files):
        for row, record in enumerate(_rows(path), 2):
            try:
                place, value = (record["model"].strip(), record["language"].strip()), float(record[metric])
            except (KeyError, ValueError, AttributeError, TypeError) as error:
                raise DataError(f"{path}, line {row}: wanted are model, language and {metric} ({error!r})") from error
            _add(found, place, value, f"{path}, line {row}")
    folders = [one for one in where if one not in files]
    for run in read_runs(folders).runs if folders else ():
        if run.task == TASK and metric in run.result:
            _add(found, (run.model, run.language), float(run.result[metric]), run.origin)
    if not found:
        raise DataError(f"{', '.join(where)} have no {metric} of {TASK}")
    return found


def _add(found: dict[tuple[str, str], float], place: tuple[str, str], value: float, origin: str) -> None:
    if not math.isfinite(value):
        raise DataError(f"{origin}: {place[0]} has {value} in {place[1]}, which is no score")
    if found.setdefault(place, value) != value:
        raise DataError(f"{origin}: {place[0]} has {value} in {place[1]}, and {found[place]} elsewhere")


def compare(judgements: Sequence[Judgement], scores: Scores) -> Comparison:
    """Raises: DataError: none of the judgements is of models that have scores."""
    points, missing = [], []
    for one in judgements:
        places = [(model, one.language) for model in (one.model_a, one.model_b)]
        missing += [place for place in places if place not in scores]
        if all(place in scores for place in places):
            points.append((one, scores[places[1]] - scores[places[0]]))
    if not points:
        raise DataError(f"no judgement is of models with scores; there are none of {missing[0]}")
    pairs = dict.fromkeys((one.model_a, one.model_b) for one, _ in points)
    each = {pair: _agreement([point for point in points if _pair(point[0]) == pair]) for pair in pairs}
    return Comparison(_agreement(points), each, points, list(dict.fromkeys(missing)))


def _pair(one: Judgement) -> tuple[str, str]:
    return one.model_a, one.model_b


def _agreement(points: Sequence[tuple[Judgement, float]]) -> Agreement:
    from scipy.stats import kendalltau, pearsonr, spearmanr

    gains, differences = [one.gain for one, _ in points], [value for _, value in points]
    same = sum(gain * value > 0 or gain == value == 0 for gain, value in zip(gains, differences, strict=True))
    agreed = percent(same, len(points))
    if len(points) < FEWEST or len(set(gains)) == 1 or len(set(differences)) == 1:
        return Agreement(len(points), agreed)
    found = [measure(differences, gains) for measure in (pearsonr, spearmanr, kendalltau)]
    return Agreement(len(points), agreed, *(float(v) for one in found for v in (one.statistic, one.pvalue)))


def _rows(path: Path) -> list[dict[str, str]]:
    with open_text(path) as file:
        return list(csv.DictReader(file))
