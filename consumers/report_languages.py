"""How scores go with properties of the languages, such as the size of their Wikipedia or their likeness to English."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cache import DataError

from .published import Place
from .report_scores import Scores
from .report_tables import MAIN_METRICS
from .tasks.files import open_text, read_json

FEWEST = 3  # languages of a correlation
ENGLISH = "en"


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of a model's zero-shot scores and a property over the languages that have both, without English.

    Attributes:
        points: language -> (property, score).
        r, r_log: with the property and with its logarithm; None where one side is the same in all languages, or a
            property is not above 0.
    """

    property: str
    model: str
    task: str
    metric: str
    points: Mapping[str, tuple[float, float]]
    r: float | None
    r_log: float | None


def read_properties(path: Path) -> dict[str, dict[str, float]]:
    """Property -> language -> number, of a CSV or JSON file.

    CSV: a column "language" and one for each property, whose cells may be blank. JSON: {property: {language: number}},
    or with vectors in place of the numbers, which become their cosine with that of English.

    Raises: InputNotFound, DataError.
    """
    try:
        if path.name.removesuffix(".gz").endswith(".json"):
            return {str(name): _numbers(values) for name, values in read_json(path).items()}
        found: dict[str, dict[str, float]] = {}
        with open_text(path) as file:
            for row in csv.DictReader(file):
                language = row.pop("language").strip()
                for name, value in row.items():
                    if value and value.strip():
                        found.setdefault(name, {})[language] = _finite(value)
        return found
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise DataError(
            f"{path} does not tell properties of languages ({type(error).__name__} {error}); wanted is a CSV file with "
            'a column "language" and columns of numbers, or JSON {property: {language: number or vector}}'
        ) from error


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    if not all(isinstance(value, list) for value in values.values()):
        return {language: _finite(value) for language, value in values.items()}
    vectors = {language: np.array([_finite(x) for x in value]) for language, value in values.items()}
    english = vectors[ENGLISH]
    norms = {language: float(np.linalg.norm(v) * np.linalg.norm(english)) for language, v in vectors.items()}
    return {language: float(v @ english) / norms[language] for language, v in vectors.items() if norms[language]}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is no finite number")
    return number


def correlations(scores: Scores, properties: Mapping[str, Mapping[str, float]]) -> list[Correlation]:
    """Of every model, task and property that share languages enough."""
    found = []
    zero = [one for one in scores.places if one.setup == "zero-shot" and one.metric in MAIN_METRICS]
    for name, values in properties.items():
        for task, metric in dict.fromkeys((one.task, one.metric) for one in zero):
            for model in scores.models:
                points = {}
                for language, value in values.items():
                    score = scores.get(model, Place("zero-shot", task, language, "0", metric))
                    if score and language != ENGLISH:
                        points[language] = value, score.value
                if len(points) >= FEWEST:
                    x, y = np.array(list(points.values())).T
                    log = _pearson(np.log10(x), y) if (x > 0).all() else None
                    found.append(Correlation(name, model, task, metric, points, _pearson(x, y), log))
    return found


def _pearson(x: np.ndarray, y: np.ndarray) -> float | None:
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm > 1e-12 else None
