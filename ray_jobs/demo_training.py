"""`demo`, continued: a small encoder learns to tell what is in drawn scenes, from their regions in a store.

Everything is kept in a folder, and what is there is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cache import RoivaultError
from cache.output import table
from consumers.results import Row, Table

from .evaluate import TABLE as RESULTS
from .evaluate import Evaluation
from .extract import run_extract
from .fan_out import fan_out
from .finetune import TABLE as RUNS
from .finetune import Finetuning
from .options import ExtractOptions
from .signals import INTERRUPTED, Drain

ENCODER = "uniter-small"
TASKS = {"scenes": "one picture", "scene-pairs": "two pictures"}
SERIES = {"train": 1, "dev": 2, "test": 1_000_003}  # of scenes; the model was trained on series 0
COUNTS = {"train": 2000, "dev": 150, "test": 300}


def train_demo(
    out: Path, counts: dict[str, int] = COUNTS, quiet: bool = False, **recipe: Any
) -> dict[str, dict[str, Any]]:
    """Draw scenes, extract them, fine-tune on captions about one and about two of them, and test on others.

    Args:
        out: folder to work in.
        counts: scenes of each split.
        quiet: show no progress.
        recipe: what differs from the recipe of the tasks.

    Returns: task -> {"accuracy", "shuffled", "n", "kinds"}: percent right, with the regions of each picture exchanged
        for those of another, too, and by kind of caption.

    Raises: KeyboardInterrupt: interrupted; the same call continues. And whatever the parts raise.
    """
    scenes, store = out / "scenes", out / "scenes.roi"
    _draw(scenes, counts, quiet)
    summary = run_extract(ExtractOptions(str(scenes), str(store), "demo", refresh_changed=True, quiet=quiet))
    if summary.exit_code:
        raise KeyboardInterrupt if summary.exit_code == INTERRUPTED else RoivaultError(summary.verdict)
    tokenizer = _tokenizer(scenes, out / "tokenizer")
    with Drain("batch at work", "what was saved is whole") as drain:
        rows = list(_rows(out, scenes, store, tokenizer, recipe, quiet, lambda: drain.requested))
    return {row["run"]["task"]: _scores(row, shuffled) for row, shuffled in zip(rows[::2], rows[1::2], strict=True)}


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print what `train_demo` returns."""
    columns = ("held-out captions about", "of them", "right", "with another picture's regions", "by kind")
    rows = []
    for task, one in found.items():
        kinds = ", ".join(f"{kind} {percent:.0f}" for kind, percent in one["kinds"].items())
        rows.append((TASKS[task], f"{one['n']:,}", f"{one['accuracy']:.1f} %", f"{one['shuffled']:.1f} %", kinds))
    table(columns, rows)


def _draw(scenes: Path, counts: dict[str, int], quiet: bool) -> None:
    from consumers.progress import CountProgress
    from extractor.scenes import write_scenes

    with CountProgress("scenes drawn", quiet) as progress:
        for split, count in counts.items():
            listing = scenes / split / "scenes.jsonl"
            if not listing.exists() or listing.read_text("utf-8").count("\n") != count:
                write_scenes(scenes / split, count, SERIES[split], lambda done, count=count: progress(done, count))


def _tokenizer(scenes: Path, folder: Path) -> Path:
    """Of the words of all captions to train on, made once."""
    from consumers.encoders import encoder_config
    from consumers.encoders.small_tokenizer import make_tokenizer
    from consumers.tasks import Selection, load_task

    if (folder / "tokenizer_config.json").exists():
        return folder
    texts = (one.text for task in TASKS for one in load_task(task, scenes).load(Selection("train")))
    return make_tokenizer(texts, folder, encoder_config(ENCODER).vocab_size)


def _rows(
    out: Path, scenes: Path, store: Path, tokenizer: Path, recipe: dict[str, Any], quiet: bool, stop: Callable[[], bool]
) -> Iterator[Row]:
    """For each task the row of its test and that of the test with regions exchanged; the second task starts from the
    weights of the first."""
    from consumers.recipes import published_recipe
    from consumers.runs import EvaluationRun, FinetuneRun, checkpoint_identity

    training, testing = Finetuning(str(out / "runs"), quiet, 1, None, stop), Evaluation(str(out), quiet, stop)
    weights: str | None = None
    for task in TASKS:
        setting: dict[str, Any] = dict(
            encoder=ENCODER, task=task, stores=(str(store),), annotations=str(scenes), tokenizer=str(tokenizer)
        )
        chosen = replace(published_recipe(task, ENCODER), **recipe)
        run = FinetuneRun(checkpoint=weights, recipe=chosen, **setting)
        weights = _done(run, training, out / RUNS, stop)["result"]["weights"]
        test = EvaluationRun(checkpoint=weights, weights=checkpoint_identity(weights), **setting)
        for one in (test, replace(test, shuffled=True)):
            yield _done(one, testing, out / RESULTS, stop)


def _done(run: Any, work: Callable[[Any], dict[str, Any]], journal: Path, stop: Callable[[], bool]) -> Row:
    rows = fan_out([run], work, Table(journal), stop=stop)
    if not rows:
        raise KeyboardInterrupt
    if rows[0]["status"] == "failed":
        raise RoivaultError(f"{run.name}: {rows[0]['error']}")
    return rows[0]


def _scores(row: Row, shuffled: Row) -> dict[str, Any]:
    result, chance = row["result"], shuffled["result"]
    kinds = {kind: one["accuracy"] for kind, one in result["subsets"]["kind"].items()}
    return {"accuracy": result["accuracy"], "shuffled": chance["accuracy"], "n": result["n"], "kinds": kinds}
