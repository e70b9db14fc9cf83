"""What a report is about: rows of results tables, and predictions files in folders laid out like the released ones.

results.jsonl                                               of `evaluate`, and the predictions beside it
xgqa/few_shot/ctrl_uc2/test_de_5_result.json.gz             task, set-up, model, language, shots
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cache import DataError, InputNotFound, RoivaultError, UsageError

from .predictions import right_ones, score_examples
from .published import Place
from .report_scores import few_shot_samples
from .results import Row, Table
from .tasks import Example, Selection, Task, list_tasks, load_task
from .tasks.files import check_annotations

RESULTS = "results.jsonl"
PREDICTIONS = re.compile(r"test_(?P<language>[a-z]{2})_(?P<shots>\w+)_result\.json(\.gz)?")
SETUPS = {name.replace("-", "_"): name for name in ("zero-shot", "few-shot", "translate-test", "translate-train")}
COUNTS = ("n", "images")
NAMED_SETS = ("full", "labelled")  # evaluation sets whose scores stand apart from the usual ones
VARIANTS = ("legacy", "shuffled")  # options of `evaluate` that make it another model


@dataclass(frozen=True)
class Run:
    """One model on one test set.

    Attributes:
        origin: where it was found, for people.
        shots: "0" without any, "" where nothing tells it.
        annotations: folder of the task's annotations.
        stores: that its features came from.
        predictions: what it predicted; None where that is not known.
        result: its scores, as `score_predictions` tells them; empty until they are computed.
    """

    origin: str
    model: str
    task: str
    language: str
    setup: str
    shots: str
    eval_set: str | None
    annotations: str | None
    stores: tuple[str, ...]
    predictions: Path | None
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def selection(self) -> Selection:
        return Selection("test", self.language, translated=self.setup == "translate-test" and self.language != "en")

    def place(self, metric: str) -> Place:
        if self.eval_set in NAMED_SETS:
            base, mark, part = metric.partition("/")
            metric = f"{base}_{self.eval_set}{mark}{part}"
        return Place(self.setup, self.task, self.language, self.shots, metric)

    def scores(self) -> Iterator[tuple[Place, float, int]]:
        """(place, score, examples that it is of) of the whole and of its parts.

        Raises: DataError: the result is not one of `score_predictions`.
        """
        groups = {"": self.result}
        for fact, values in (self.result.get("subsets") or {}).items():
            parts = {f"/subset={fact}": values} if "n" in values else {f"/{fact}={k}": v for k, v in values.items()}
            groups |= parts
        for part, group in groups.items():
            if not isinstance(group, Mapping):
                raise DataError(f"its result has {str(group)[:100]} for {part or 'scores'}")
            for metric, value in group.items():
                if metric not in COUNTS and isinstance(value, (int, float)) and not isinstance(value, bool):
                    if not math.isfinite(value) or not isinstance(group.get("n"), int):
                        raise DataError(f"its {metric}{part} is {value} of {group.get('n')} examples")
                    yield self.place(metric + part), float(value), group["n"]


@dataclass(frozen=True)
class Found:
    """The runs there are, and what there is no score of: (where, why)."""

    runs: list[Run]
    failed: list[tuple[str, str]]


def read_runs(
    where: Sequence[str],
    annotations: Path | None = None,
    eval_set: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """The runs of results tables and predictions files, in folders at any depth; what is named twice counts once.

    Args:
        where: paths, each with NAME= before it to rename the model; models of one name are runs of one model.
        annotations: what predictions files are scored against.
        eval_set: of predictions files of the tasks that have it.

    Raises:
        UsageError: there are predictions files, but no annotations; or their path does not tell what they are of.
        InputNotFound: a path is not there, or has nothing to report; or the annotations are not there.
        DataError: a results table is not one.
    """
    runs: list[Run] = []
    failed: list[tuple[str, str]] = []
    seen: set[Path] = set()
    for argument in where:
        name, mark, path = argument.partition("=")
        if not mark or Path(argument).exists():
            name, path = "", argument
        files = list(_files(Path(path)))
        if not files:
            raise InputNotFound(f"{path} has no {RESULTS} and no predictions such as test_de_0_result.json.gz")
        for file in files:
            if file.resolve() not in seen:
                new = _of_table(file, failed) if file.suffix == ".jsonl" else [_of_predictions(file, eval_set)]
                runs += [replace(run, model=name or run.model) for run in new]
            seen.add(file.resolve())
    if where and not runs and not failed:
        raise InputNotFound(f"{', '.join(where)}: no run is in {RESULTS} yet")
    if any(not run.result for run in runs):
        if annotations is None:
            raise UsageError(
                "predictions files are scored against annotations; name their folder with --annotations DIR"
            )
        check_annotations(annotations)
    scored, gold = [], cache(examples_of)
    for done, run in enumerate(runs, 1):
        try:
            whole = run if run.result else _scored(run, annotations, gold)
            list(whole.scores())
        except RoivaultError as error:
            failed.append((run.origin, str(error)))
        else:
            scored.append(whole)
        progress(done, len(runs))
    return Found(scored, failed)


def _files(path: Path) -> Iterator[Path]:
    """Raises: InputNotFound."""
    if not path.exists():
        raise InputNotFound(f"{path} does not exist")
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.name == RESULTS or PREDICTIONS.fullmatch(file.name):
            yield file


def _of_table(path: Path, failed: list[tuple[str, str]]) -> list[Run]:
    """The runs that are done; the others are added to `failed`. Raises: DataError."""
    runs = []
    for number, row in enumerate(_latest(Table(path).rows.values())):
        facts, result = row["run"], row.get("result")
        origin = f"{path}, run {number + 1}"
        try:
            origin += f" ({facts['encoder']} {facts['task']} {facts['language']} {facts['setup']})"
            if facts["task"] not in list_tasks():
                failed.append((origin, f"there is no task {facts['task']}"))
                continue
            if row["status"] != "done":
                failed.append((origin, str(row.get("error", row["status"]))))
                continue
            predictions = path.parent / result["predictions"] if result.get("predictions") else None
            runs.append(
                Run(
                    origin, _model(facts, result), facts["task"], facts["language"],
                    "few-shot" if facts["setup"] == "max-shot" else facts["setup"], _shots(facts),
                    facts.get("eval_set"), facts["annotations"], tuple(facts["stores"]), predictions, result,
                )
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            text = f"{path}: run {number + 1} is not one of `evaluate`: {error!r} in {str(row)[:200]}"
            raise DataError(text) from error
    return runs


def _latest(rows: Iterable[Row]) -> list[Row]:
    """Of runs whose checkpoint was replaced under its name, those of the last one."""
    kept = {}
    for row in rows:
        key = json.dumps({**row["run"], "weights": None}, sort_keys=True) if isinstance(row["run"], dict) else len(kept)
        kept.pop(key, None)
        kept[key] = row
    return list(kept.values())


def _model(facts: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The encoder, told apart from what is not a run of the same, or ranked fewer pictures."""
    variants = [name for name in VARIANTS if facts.get(name)]
    variants += [f"{result['candidates']} candidates"] if "candidates" in result else []
    return " ".join([str(facts["encoder"]), *(f"({name})" for name in variants)])


def _shots(facts: Mapping[str, Any]) -> str:
    if facts["setup"] == "max-shot":
        return facts.get("shots") or next(reversed(few_shot_samples(facts["task"])), "")
    return facts.get("shots") or ("" if facts["setup"] == "few-shot" else "0")


def _of_predictions(path: Path, eval_set: str | None) -> Run:
    """What the path of a predictions file tells. Raises: UsageError."""
    named = PREDICTIONS.fullmatch(path.name)
    folders = path.resolve().parts[:-1]
    task = next((one for one in reversed(folders) if one in list_tasks()), None)
    kind = folders[-2].partition(".")[0]  # "translate_train.de"
    if not named or not task or kind not in SETUPS:
        raise UsageError(
            f"{path} is not in a folder like xgqa/few_shot/MODEL/test_de_5_result.json.gz, which tells what it is of"
        )
    model = folders[-1].removeprefix("ctrl_")
    shots = named["shots"]
    setup = SETUPS[kind]
    if setup == "few-shot" and shots == "0":
        setup = "zero-shot"
    asked = eval_set if eval_set in load_task(task, ".").eval_sets else None
    return Run(str(path), model, task, named["language"], setup, shots, asked, None, (), path)


def examples_of(task: str, annotations: str, selection: Selection, eval_set: str | None) -> tuple[Task, list[Example]]:
    """A task and the examples of a selection. Raises: UsageError, InputNotFound, DataError."""
    known = load_task(task, annotations, **({"eval_set": eval_set} if eval_set else {}))
    return known, known.gold(selection)


def _scored(run: Run, annotations: Path, gold: Callable) -> Run:
    task, examples = gold(run.task, str(annotations), run.selection, run.eval_set)
    result = score_examples(task, examples, run.predictions)
    return replace(run, annotations=str(annotations), result=result)


def hits_of(run: Run, gold: Callable = examples_of) -> tuple[list[Example], np.ndarray]:
    """The examples of a run, and which of them it has right: bool [examples].

    Raises: UsageError, InputNotFound, DataError.
    """
    if run.predictions is None or run.annotations is None:
        raise InputNotFound(f"of {run.origin} no predictions are kept")
    task, examples = gold(run.task, run.annotations, run.selection, run.eval_set)
    return examples, right_ones(task, examples, run.predictions)
