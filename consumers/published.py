"""Scores that were published, shipped as data with their source: tables of papers and CSV files released with them.

What a paper printed is one file in `published`, and a line in SOURCES.

Languages are ISO 639-1 here, "avg" is the mean over the other languages than English, "avg+en" that over all. The score
in English of a MaRVL model is one of the task nlvr2. "accuracy_full" is xGQA's on all 12,578 test-dev questions, where
"accuracy" is on the 9,666 that no few-shot set has.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

SOURCES = {
    "iglue-paper": "Bugliarello et al., IGLUE, ICML 2022, https://arxiv.org/abs/2201.11732: the tables as printed",
    "iglue-results": "the results that were released with it, https://github.com/e-bug/iglue: CSV files, more digits",
    "maxm-paper": "Changpinyo et al., MaXM, Findings of EMNLP 2023, https://arxiv.org/abs/2209.05401: tables 5 to 9",
    "vsr-paper": "Liu, Emerson and Collier, Visual Spatial Reasoning, TACL 2023, https://arxiv.org/abs/2205.00363",
}


class Place(NamedTuple):
    """What a score is of, but for the model.

    `setup` is "few-shot" for the most shots too; `shots` is "0" without any; `metric` may go on with "/fact=value" for
    a part of the examples, with "_auc" for the area below a few-shot curve, and with "_gain" for the most shots minus
    none.
    """

    setup: str
    task: str
    language: str
    shots: str
    metric: str


@dataclass(frozen=True)
class Published:
    """One published score.

    Attributes:
        source: a key of SOURCES.
        table: number of the paper's table, behind the paper's name where it is not IGLUE's; or name of the CSV file.
        value: in percent, as printed.
        deviation: over runs, where it is printed.
    """

    source: str
    table: str
    model: str
    place: Place
    value: float
    deviation: float | None = None


@cache
def published_scores() -> tuple[Published, ...]:
    """All of them, those of a paper before what was released with it."""
    found = []
    folder = files(__package__).joinpath("published")
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".csv"):
            continue
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                place = Place(*(row[field] for field in Place._fields))
                deviation = float(row["deviation"]) if row.get("deviation") else None
                score = float(row["value"]), deviation
                found.append(Published(row["source"], row["table"], row["model"], place, *score))
    return tuple(found)


@cache
def most_precise() -> dict[tuple[str, Place], Published]:
    """(model, place) -> its published score, with the most digits there are."""
    return {(one.model, one.place): one for one in published_scores()}
