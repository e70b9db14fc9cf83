"""The verb `evaluate`: checkpoints on test sets, or a predictions file that is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cache import UsageError
from cache.output import say, table
from consumers.results import Row, Table

from .fan_out import exit_code, fan_out, show_failures
from .options import ENGINES
from .signals import INTERRUPTED, Drain

if TYPE_CHECKING:
    from consumers.runs import EvaluationRun

TABLE = "results.jsonl"
SCORES = ("accuracy", "ir_r1", "cider")  # what is shown of a run, the first that it has
MEANS = ("ir_r1", "tr_r1", "cider", "rouge_l")
SETUPS = ("zero-shot", "translate-test", "few-shot", "max-shot", "translate-train")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(evaluate)


def evaluate(
    task: str = typer.Option(..., "--task", metavar="TASK", help="One of `roivault tasks list`."),
    annotations: Path = typer.Option(..., "--annotations", metavar="DIR", help="The folder of the task's annotations."),
    language: str = typer.Option("en", "--language", metavar="L|all", help="Of the test set."),
    encoder: str = typer.Option(None, "--encoder", metavar="NAME", help="Which encoder or model the checkpoint is of."),
    checkpoint: str = typer.Option(
        None, "--checkpoint", metavar="FILE|ID", help="Its weights, fine-tuned on the task; of a model also a hub id."
    ),
    store: list[str] = typer.Option([], "--store", metavar="STORE", help="Regions of the pictures; may be repeated."),
    images: Path = typer.Option(None, "--images", metavar="DIR", help="The pictures, for models that read pixels."),
    setup: str = typer.Option("zero-shot", "--setup", metavar="|".join(SETUPS), help="How the checkpoint was made."),
    shots: str = typer.Option(None, "--shots", metavar="N", help="That a few-shot checkpoint was trained on."),
    train_on: str = typer.Option(None, "--train-on", metavar="TASK[:L]", help="Whose answers maxm's classes are."),
    translate: str = typer.Option(
        None, "--translate", metavar="FILE|MODULE:F", help="Of maxm's translate-test: questions there, answers back."
    ),
    predictions: Path = typer.Option(None, "--predictions", metavar="FILE", help="Score this file; may be gzipped."),
    shuffled: bool = typer.Option(False, "--shuffled", help="Give each picture the regions of another: what is left?"),
    eval_set: str = typer.Option(
        None, "--eval-set", metavar="SET", help="Of xgqa fewshot-test|full, of xvnli all|labelled."
    ),
    candidates: str = typer.Option(
        None, "--candidates", metavar="N|full", help="Pictures to rank of xm3600; default full, of encoders 1000."
    ),
    out: Path = typer.Option(Path("results"), "--out", "-o", help="Folder of the results and predictions."),
    tokenizer: str = typer.Option(None, "--tokenizer", metavar="ID|DIR", help="Default: the encoder's own."),
    legacy: bool = typer.Option(False, "--legacy", help="Reproduce the quirks of the published code."),
    device: str = typer.Option("auto", "--device", metavar="auto|cpu|cuda|cuda:N", help="Where the encoder runs."),
    precision: str = typer.Option("auto", "--precision", metavar="auto|float32|bfloat16", help="Number format."),
    batch_size: int = typer.Option(64, "--batch-size", min=1, help="Examples at a time."),
    engine: str = typer.Option("local", "--engine", metavar="local|ray", help="What the languages run on."),
    address: str = typer.Option(None, "--address", metavar="HOST:PORT", help="Of a Ray cluster."),
    as_json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Score an encoder on a task, from a store; finished languages are not repeated. Or score a predictions file."""
    if predictions is not None:
        given = {"--encoder": encoder, "--checkpoint": checkpoint, "--store": store, "--images": images}
        if clash := [n for n, value in (given | {"--shots": shots, "--shuffled": shuffled}).items() if value]:
            raise UsageError(f"--predictions is scored as it is; {', '.join(clash)} has no place beside it")
        scores = score_file(task, annotations, language, predictions, setup, eval_set, translate, candidates)
        _print_scores(scores, as_json)
        return
    from consumers.models import MODELS, NOT_RUN

    needed = {"--encoder": encoder, "--store": store or images}
    if encoder not in (*MODELS, *NOT_RUN):  # of which the published weights are known
        needed |= {"--checkpoint": checkpoint}
    if missing := [name for name in ("--encoder", "--checkpoint", "--store") if not needed.get(name, True)]:
        raise UsageError(f"evaluate needs {', '.join(missing)}, or --predictions FILE")
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine!r} is not {' or '.join(ENGINES)}")
    from consumers.runs import EvaluationRun, checkpoint_identity

    base = EvaluationRun(
        encoder, checkpoint, task, tuple(store), str(annotations), tokenizer=tokenizer, legacy=legacy,
        device=device, precision=precision, images=images and str(images), setup=setup, shots=shots, eval_set=eval_set,
        train_on=train_on, translate=translate, candidates=candidates, batch_size=batch_size, shuffled=shuffled,
        weights=checkpoint_identity(checkpoint),
    )  # fmt: skip
    runs = [replace(base, language=one) for one in _languages(base, language)]
    for run in runs:
        run.check(run.tested, [run.selection], "--checkpoint")
    far = engine == "ray" or address is not None
    with Drain("batch at work", "finished scores are kept") as drain:
        work = Evaluation(str(out), quiet or far, None if far else lambda: drain.requested)
        rows = fan_out(runs, work, Table(out / TABLE), address, far, gpu=device != "cpu", stop=lambda: drain.requested)
    _print_rows(rows, as_json)
    if len(rows) < len(runs):
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(exit_code(rows))


class Evaluation:
    """Does one run, here or in a worker of a cluster.

    `stop` is asked between batches; scores of retrieval that are there then are not computed again. A worker, which
    it cannot travel to, is stopped from outside.
    """

    def __init__(self, out: str, quiet: bool, stop: Callable[[], bool] | None = None):
        self._out, self._quiet, self._stop = out, quiet, stop

    def __call__(self, run: EvaluationRun) -> dict[str, Any]:
        """Raises: KeyboardInterrupt: it was stopped."""
        from consumers import runs
        from consumers.progress import CountProgress

        with CountProgress(run.name, self._quiet) as progress:

            def report(done: int, total: int) -> None:
                progress(done, total)
                if self._stop and self._stop() and done < total:
                    raise KeyboardInterrupt

            return runs.evaluate(run, self._out, report, progress.tell)


def _languages(run: EvaluationRun, asked: str) -> list[str]:
    """Raises: UsageError."""
    known = run.tested.languages
    if asked == "all":
        return [one for one in known if run.setup != "translate-test" or one != "en"]
    if asked not in known:
        raise UsageError(f"{run.task} is not tested in {asked!r}; its languages are {', '.join(known)}")
    return [asked]


def score_file(
    task: str,
    annotations: Path,
    language: str,
    predictions: Path,
    setup: str,
    eval_set: str | None,
    translate: str | None = None,
    candidates: str | None = None,
) -> dict[str, Any]:
    """The scores of a predictions file. Raises: UsageError, InputNotFound, DataError."""
    from consumers.predictions import score_predictions
    from consumers.runs import EvaluationRun

    run = EvaluationRun(
        "", None, task, (), str(annotations), language, setup=setup, eval_set=eval_set, translate=translate,
        candidates=candidates,
    )  # fmt: skip
    if language == "all":
        raise UsageError(f"--predictions is of one language; choose one of {', '.join(run.tested.languages)}")
    _languages(run, language)
    return {"task": task, "language": language, **score_predictions(run.tested, predictions, run.selection)}


def _print_scores(scores: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(scores, indent=2))
        return
    for name, value in scores.items():
        if name != "subsets":
            say(f"{name:<12}", f"{value:.2f}" if isinstance(value, float) else value)
    for fact, groups in scores["subsets"].items():
        for name, group in ({"": groups} if "n" in groups else groups).items():
            figures = "  ".join(f"{k} {v:.2f}" for k, v in group.items() if k != "n")
            say(f"{fact}{f' {name}' if name else ''}", f"{figures}  of {group['n']:,}")


def means(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Of XM3600's tasks, where several languages are done, each counting as much as another: {task: {score: mean}}."""
    found = {}
    for task in dict.fromkeys(row["run"]["task"] for row in rows):
        results = [row["result"] for row in rows if row["run"]["task"] == task and row["status"] == "done"]
        if task.startswith("xm3600") and len(results) > 1:
            found[f"{task} over {len(results)} languages"] = {
                name: sum(one[name] for one in results) / len(results)
                for name in MEANS
                if all(name in one for one in results)
            }
    return found


def _print_rows(rows: list[Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    shown = []
    for row in rows:
        run, result = row["run"], row.get("result", {})
        score = next((result[name] for name in SCORES if name in result), 0.0)
        text = f"{score:.2f}" if row["status"] == "done" else "failed"
        back = f"{result['tr_r1']:.2f}" if "tr_r1" in result else ""
        setup = f"{run['setup']} {run.get('shots') or ''}".rstrip()
        shown.append((run["encoder"], run["task"], run["language"], setup, text, back, result.get("n", "")))
    table(("encoder", "task", "language", "set-up", "accuracy, IR@1 or CIDEr", "TR@1", "n"), shown)
    for note in dict.fromkeys(note for row in rows for note in row.get("result", {}).get("notes", ())):
        say(note)
    for task, scores in means(rows).items():
        say(f"mean of {task}:", ", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    show_failures(rows)
