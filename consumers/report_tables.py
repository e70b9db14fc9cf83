"""The published tables, with what was measured in each of their cells, and tables of all languages and parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .published import Place, Published, most_precise, published_scores
from .report_scores import GAIN, GAIN_PRINTED, Estimate, Scores, few_shot_samples
from .tasks import load_task

SETUPS = ("zero-shot", "few-shot", "translate-test", "translate-train")
MAIN_METRICS = ("accuracy", "accuracy_full", "ir_r1", "tr_r1", "mean_recall", "accuracy_processed", "cider", "rouge_l")
METRIC_NAMES = {
    "accuracy_full": "accuracy on all test-dev questions",
    "accuracy_processed": "accuracy of processed answers",
    "cider": "CIDEr",
    "rouge_l": "ROUGE-L",
}
MOST_PARTS = 12  # columns; what has more is told in the CSV and JSON files only


@dataclass(frozen=True)
class Cell:
    """One score of one model, as measured and as published."""

    model: str
    place: Place
    ours: Estimate | None
    published: Published | None

    @property
    def difference(self) -> float | None:
        return self.ours.value - self.published.value if self.ours and self.published else None


@dataclass(frozen=True)
class Table:
    """Cells by their rows and columns, which are named by the fields of a cell that tell them apart."""

    number: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    note: str = ""
    cells: Mapping[tuple[tuple[str, ...], tuple[str, ...]], Cell] = field(default_factory=dict)

    @property
    def row_names(self) -> list[tuple[str, ...]]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def column_names(self) -> list[tuple[str, ...]]:
        return list(dict.fromkeys(column for _, column in self.cells))

    @property
    def measured(self) -> int:
        return sum(cell.ours is not None for cell in self.cells.values())


FULL_NOTE = "On all 12,578 test-dev questions (`--eval-set full`), and of other checkpoints than the other tables."
MAXM_NOTE = "Published are scores of 2,142 questions; the parquet files without those named `yesno` have 1,890."
AS_PRINTED = Table("19", "Most shots minus zero-shot, as table 5 minus table 4", ("model",), ("task", "metric"),
                   "From averages with two decimals. For M3P's IR a fall is published where the tables show a rise.",
                   )  # fmt: skip
PAPER = (
    Table("3", "English test sets", ("model",), ("task", "metric"),
          "The published xGQA scores of the five English models are on all 12,578 questions, the others on 9,666."),
    Table("4", "Zero-shot and translate-test, averaged across languages", ("setup", "model"), ("task", "metric")),
    Table("5", "Max-shot, averaged across the languages with few-shot sets", ("model",), ("task", "metric")),
    Table("10", "Multi30K, zero-shot, mean recall", ("model",), ("language",)),
    Table("11", "xGQA, zero-shot, full test-dev set", ("model",), ("language",), FULL_NOTE),
    Table("12", "WIT, zero-shot, by language", ("metric", "model"), ("language",)),
    Table("13", "XVNLI by language and shots", ("language", "model"), ("shots",)),
    Table("14", "xGQA by language and shots", ("language", "model"), ("shots",)),
    Table("15", "MaRVL by language and shots", ("language", "model"), ("shots",)),
    Table("16", "xFlickr&CO, IR R@1, by language and shots", ("language", "model"), ("shots",)),
    Table("17", "xFlickr&CO, TR R@1, by language and shots", ("language", "model"), ("shots",)),
    Table("18", "Area below the few-shot curve over training samples, averaged across languages", ("model",),
          ("task", "metric")),
    Table("19", "Most shots minus zero-shot, over the languages with few-shot sets", ("model",), ("task", "metric"),
          "Published is table 5 minus table 4, of which MaRVL's zero-shot average is over five languages, not three."),
    AS_PRINTED,
    Table("20", "xFlickr&CO: more pictures or more captions", ("shots", "model"), ("language", "metric")),
    Table("21", "xFlickr&CO by subset, English", ("model",), ("metric",)),
    Table("MaXM 5", "MaXM by language", ("setup", "model"), ("language",), MAXM_NOTE),
    Table("MaXM 6", "MaXM by training set and language", ("model",), ("language",),
          "In brackets what a model was trained on, where that is not VQA 2.0; rename runs so, NAME=RUNS."),
    Table("MaXM 7", "MaXM by metric and language", ("metric", "setup", "model"), ("language",)),
    Table("MaXM 8", "MaXM, models of English with translated questions or as they are", ("metric", "setup", "model"),
          ("language",), "Zero-shot are models that were asked in the language itself."),
    Table("MaXM 9", "xGQA, full test-dev set, with translated training questions and English answers",
          ("setup", "model"), ("language",), "The first two were trained on GQA, the others on other pictures."),
    Table("VSR 4", "VSR, split at random and by concepts", ("model",), ("task",),
          "Of people 500 captions of the random split were asked."),
    Table("VSR 5", "VSR, frames of reference, and captions with left or right", ("model",), ("task", "metric"),
          "`vilt-frames` started from the weights that had learned to tell frames."),
)  # fmt: skip


def paper_tables(scores: Scores) -> list[Table]:
    """The published tables with every model that was published or measured; each cell shows what there is of both."""
    tables = []
    for table in PAPER:
        rows = [one for one in published_scores() if one.table == table.number]
        places = dict.fromkeys(one.place for one in rows)
        published = {(one.model, one.place): most_precise()[one.model, one.place] for one in rows}
        models = list(dict.fromkeys([*(one.model for one in rows), *scores.models]))
        cells = {}
        for place in places:
            wanted = place
            if table is AS_PRINTED:
                wanted = place._replace(metric=place.metric.removesuffix(GAIN) + GAIN_PRINTED)
            for model in models:
                cell = Cell(model, wanted, scores.get(model, wanted), published.get((model, place)))
                if cell.ours or cell.published:
                    cells[_named(cell, table.rows), _named(cell, table.columns)] = cell
        tables.append(replace(table, cells=cells))
    return tables


def language_tables(scores: Scores) -> list[Table]:
    """What was measured of each task, by language, with the average where it is whole."""
    tables = []
    for task, metric in dict.fromkeys((p.task, p.metric) for p in scores.places if p.metric in MAIN_METRICS):
        places = [place for place in scores.places if (place.task, place.metric) == (task, metric)]
        places = sorted({*places, *(place._replace(language="avg") for place in places)}, key=in_order)
        table = Table("", f"{task}, {metric_name(metric)}, by language", ("setup", "shots", "model"), ("language",))
        tables.append(_measured(table, scores, places))
    return tables


def part_tables(scores: Scores, sizes: Mapping[Place, int]) -> list[Table]:
    """What was measured of parts of the examples, such as types of questions, in English and on average."""
    tables = []
    kinds = dict.fromkeys((p.task, *p.metric.partition("=")[:1]) for p in scores.places if "/" in p.metric)
    for task, kind in kinds:
        places = [place for place in scores.places if place.task == task and place.metric.partition("=")[0] == kind]
        metric, _, fact = kind.partition("/")
        if metric not in MAIN_METRICS or len({place.metric for place in places}) > MOST_PARTS:
            continue
        wanted = {place if place.language == "en" else place._replace(language="avg") for place in places}
        wanted = sorted(sorted(wanted), key=in_order)
        title = f"{task}, {metric_name(metric)}, by {fact}"
        table = Table("", title, ("setup", "shots", "language", "model"), ("metric",), _coverage(places, sizes))
        if (filled := _measured(table, scores, wanted)).cells:
            tables.append(filled)
    return tables


def in_order(place: Place) -> tuple[int, int, int]:
    """For sorting, by set-up, shots and language, as the tasks order them."""
    languages = load_task(place.task, ".").languages
    pictures, _, captions = place.shots.partition("x")
    shots = int(pictures or 0) * int(captions or 1) if place.shots.replace("x", "").isdigit() else 0
    shots = few_shot_samples(place.task).get(place.shots, shots)
    language = languages.index(place.language) if place.language in languages else len(languages)
    return SETUPS.index(place.setup) if place.setup in SETUPS else len(SETUPS), shots, language


def _coverage(places: Sequence[Place], sizes: Mapping[Place, int]) -> str:
    """How many examples have the fact, of those of the same run."""
    sums: dict[tuple[int, int], None] = {}
    for one in dict.fromkeys(place._replace(metric=place.metric.partition("/")[0]) for place in places):
        parts = [place for place in places if place[:4] == one[:4]]
        sums[sum(sizes[place] for place in parts), sizes.get(one, 0)] = None
    return f"It is known of {' and of '.join(f'{part:,} of {whole:,}' for part, whole in sums)} examples."


def _measured(table: Table, scores: Scores, places: Iterable[Place]) -> Table:
    cells = {}
    for place in places:
        for model in scores.models:
            if ours := scores.get(model, place):
                cell = Cell(model, place, ours, most_precise().get((model, place)))
                cells[_named(cell, table.rows), _named(cell, table.columns)] = cell
    return replace(table, cells=cells)


def _named(cell: Cell, fields: Sequence[str]) -> tuple[str, ...]:
    facts = {"model": cell.model, **cell.place._asdict()}
    return tuple(facts[name] for name in fields)


def metric_name(metric: str) -> str:
    """As people call it: "IR R@1", "accuracy", or the part that it is of."""
    base, _, part = metric.partition("/")
    for ending in (GAIN_PRINTED, GAIN, "_auc"):
        base = base.removesuffix(ending)
    if part:
        return part.partition("=")[2]
    if base in METRIC_NAMES:
        return METRIC_NAMES[base]
    return base.upper().replace("_R", " R@") if base[:3] in ("ir_", "tr_") else base.replace("_", " ")
