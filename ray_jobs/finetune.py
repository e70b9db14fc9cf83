"""The verb `finetune`: one run, or the published grid of few-shot runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
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
    from consumers.runs import FinetuneRun

TABLE = "runs.jsonl"
GRIDS = ("fewshot", "manyshot")
RECIPE_OPTIONS = (
    "lr", "batch", "accumulate", "epochs", "scheduled", "warmup", "weight_decay", "clip", "max_tokens",
    "validate_every", "dev_items", "hard_negatives", "drop_last", "seed",
    "warmup_updates", "most_updates",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(finetune)


def finetune(
    encoder: str = typer.Option(..., "--encoder", metavar="NAME", help="One of the encoders, or of the models."),
    task: str = typer.Option(..., "--task", metavar="TASK", help="One of `roivault tasks list`."),
    store: list[str] = typer.Option([], "--store", metavar="STORE", help="Regions of the pictures; may be repeated."),
    annotations: Path = typer.Option(..., "--annotations", metavar="DIR", help="The folder of the task's annotations."),
    images: Path = typer.Option(None, "--images", metavar="DIR", help="The pictures, for models that read pixels."),
    out: Path = typer.Option(Path("runs"), "--out", "-o", help="Folder of the runs; the same line continues them."),
    init: str = typer.Option(
        None, "--init", metavar="FILE|ID", help="Weights to start from; default drawn anew, of a model the published."
    ),
    language: str = typer.Option("en", "--language", metavar="L,L...|all", help="Of the training set."),
    train_on: str = typer.Option(None, "--train-on", metavar="TASK[:L]", help="Training set of maxm and xgqa."),
    shots: str = typer.Option(None, "--shots", metavar="N", help="Train on a few-shot set."),
    translated: bool = typer.Option(False, "--translated", help="Train on texts translated into the language."),
    dev: str = typer.Option(None, "--dev", metavar="english|target|translated", help="What chooses the best weights."),
    grid: str = typer.Option(None, "--grid", metavar="|".join(GRIDS), help="Languages x shots x learning rates."),
    lr: float = typer.Option(None, "--lr", help="Learning rate; default as published, like all below."),
    batch: int = typer.Option(None, "--batch", min=1, help="Items of an update."),
    accumulate: int = typer.Option(None, "--accumulate", min=1, help="Parts of an update that are computed apart."),
    epochs: int = typer.Option(None, "--epochs", min=1, help="Passes over the training set."),
    scheduled: int = typer.Option(None, "--scheduled", min=1, help="Passes after which the rate would be 0."),
    warmup: float = typer.Option(None, "--warmup", min=0, max=1, help="Share of the updates in which it rises."),
    weight_decay: float = typer.Option(None, "--weight-decay", min=0, help="Of AdamW."),
    clip: float = typer.Option(None, "--clip", help="Largest norm of the gradients."),
    max_tokens: int = typer.Option(None, "--max-tokens", min=2, help="Length at which texts are cut."),
    validate_every: int = typer.Option(None, "--validate-every", min=1, help="Updates, within an epoch as well."),
    dev_items: int = typer.Option(None, "--dev-items", min=1, help="So many of the dev set, the first ones."),
    hard_negatives: bool = typer.Option(
        None, "--hard-negatives/--random-negatives", help="Of retrieval: a caption of a picture that looks alike."
    ),
    drop_last: bool = typer.Option(None, "--drop-last/--keep-last", help="Leave out an epoch's last, smaller part."),
    seed: int = typer.Option(None, "--seed", min=0, help="Of order, dropout and fresh weights."),
    warmup_updates: int = typer.Option(None, "--warmup-updates", min=1, help="Of a rate that falls with their root."),
    most_updates: int = typer.Option(None, "--most-updates", min=1, help="The end, whatever the epochs."),
    tokenizer: str = typer.Option(None, "--tokenizer", metavar="ID|DIR", help="Default: the encoder's own."),
    legacy: bool = typer.Option(False, "--legacy", help="Reproduce the quirks of the published code."),
    device: str = typer.Option("auto", "--device", metavar="auto|cpu|cuda|cuda:N", help="Where the encoder runs."),
    precision: str = typer.Option("auto", "--precision", metavar="auto|float32|bfloat16", help="Number format."),
    engine: str = typer.Option("local", "--engine", metavar="local|ray", help="What the runs of a grid run on."),
    address: str = typer.Option(None, "--address", metavar="HOST:PORT", help="Of a Ray cluster."),
    workers: int = typer.Option(1, "--workers", min=1, help="Processes that share each batch of one run, on Ray."),
    wandb: str = typer.Option(None, "--wandb", metavar="PROJECT", help="Tell Weights & Biases as well."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Fine-tune an encoder on a task, from a store; the same line again continues an interrupted run."""
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine!r} is not {' or '.join(ENGINES)}")
    if grid is not None and grid not in GRIDS:
        raise UsageError(f"--grid {grid!r} is not one of {', '.join(GRIDS)}")
    import_module("tensorboard")  # its absence is told before anything is read
    from consumers.run_log import check_wandb
    from consumers.runs import FinetuneRun, checkpoint_identity

    check_wandb(wandb)
    values = (
        lr, batch, accumulate, epochs, scheduled, warmup, weight_decay, clip, max_tokens, validate_every, dev_items,
        hard_negatives, drop_last, seed, warmup_updates, most_updates,
    )  # fmt: skip
    changes = dict(zip(RECIPE_OPTIONS, values, strict=True))
    base = FinetuneRun(
        encoder, init, task, tuple(store), str(annotations), language, tokenizer, legacy, device,
        precision, images and str(images), train_on, shots, translated, dev, weights=checkpoint_identity(init),
    )  # fmt: skip
    runs = [with_recipe(run, changes) for run in (_grid(base, grid == "manyshot") if grid else [base])]
    runs = list(dict.fromkeys(runs))  # with --lr the published rates are one
    for run in runs:
        run.check(run.load_task(), [*run.train_selections, *run.dev_selections], "--init")
    if workers > 1 and grid:
        raise UsageError("--workers is for one run; the runs of a grid share the cluster by themselves")
    apart = workers == 1 and (engine == "ray" or address is not None)
    with Drain("update at work", "the state that was saved last is whole") as drain:
        work = Finetuning(str(out), quiet or apart, workers, address, lambda: drain.requested, wandb)
        rows = fan_out(
            runs, work, Table(out / TABLE), address if apart else None, apart, gpu=device != "cpu",
            stop=lambda: drain.requested,
        )  # fmt: skip
    done = [row for row in rows if row["status"] == "done"]
    _print(rows, best_rates(done) if grid else [], as_json)
    raise typer.Exit(INTERRUPTED if len(rows) < len(runs) else exit_code(rows))


def with_recipe(run: FinetuneRun, changes: dict[str, Any]) -> FinetuneRun:
    """The run with its published recipe, but for what the user chose. Raises: UsageError."""
    return replace(run, recipe=replace(run.resolved, **{k: v for k, v in changes.items() if v is not None}))


def _grid(base: FinetuneRun, many: bool) -> list[FinetuneRun]:
    """Every few-shot set of the task's languages, or those of many shots, with each published learning rate.

    Raises: UsageError.
    """
    from consumers.recipes import few_shot_rates

    task = base.load_task()
    sets = [one for one in task.counts if one.shots and (one.shots in task.many_shots) == many]
    asked, found = base.language.split(","), []
    for one in sets:
        if not {"all", one.language}.isdisjoint(asked) and base.shots in (None, one.shots):
            run = replace(base, language=one.language, shots=one.shots)
            rates = few_shot_rates(base.task, base.encoder)
            found += [replace(run, recipe=replace(run.resolved, lr=rate)) for rate in rates]
    if lost := [name for name in asked if not any(name in ("all", run.language) for run in found)]:
        which = f"in {', '.join(map(repr, lost))}{f' of {base.shots} shots' if base.shots else ''}"
        raise UsageError(f"{base.task} has no sets of {'many' if many else 'few'} shots {which}")
    return found


class Finetuning:
    """Does one run: in this process or that of a cluster's worker, or with several processes together."""

    def __init__(
        self,
        out: str,
        quiet: bool,
        workers: int,
        address: str | None,
        stop: Callable[[], bool],
        wandb: str | None = None,
    ):
        self._out, self._quiet, self._workers, self._address = out, quiet, workers, address
        self._wandb, self._stop = wandb, stop

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stop": None}  # a worker of a cluster is stopped from outside

    def __call__(self, run: FinetuneRun) -> dict[str, Any]:
        """Raises: KeyboardInterrupt: it was stopped; the same line continues it."""
        folder, stop = Path(self._out) / run.name, self._stop or (lambda: False)
        if self._workers > 1:
            from .distributed import finetune_together

            result = finetune_together(run, folder, self._workers, self._address, self._wandb, stop)
        else:
            result = self._alone(run, folder, stop)
        if not result["finished"]:
            raise KeyboardInterrupt
        return result

    def _alone(self, run: FinetuneRun, folder: Path, stop: Callable[[], bool]) -> dict[str, Any]:
        from consumers import runs
        from consumers.progress import CountProgress

        with CountProgress(run.name, self._quiet) as show:

            def report(progress: Any, scores: dict[str, float] | None, updates: int) -> None:
                best = {"dev": progress.best} if progress.best >= 0 else {}
                show(progress.updates, updates, loss=progress.loss, lr=progress.rate, **best)

            return runs.finetune(run, folder, report, stop, self._wandb, show.tell)


def best_rates(rows: list[Row]) -> list[dict[str, Any]]:
    """For each language and few-shot set the learning rate with the best validation; the first of equals."""
    best: dict[tuple, Row] = {}
    for row in rows:
        run = row["run"]
        key = run["language"], run["shots"]
        if key not in best or row["result"]["dev"] > best[key]["result"]["dev"]:
            best[key] = row
    return [
        {"language": language, "shots": shots, "lr": row["run"]["recipe"]["lr"], "dev": row["result"]["dev"],
         "weights": row["result"]["weights"]}
        for (language, shots), row in best.items()
    ]  # fmt: skip


def _print(rows: list[Row], best: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"runs": rows, "best": best}, indent=2))
        return
    shown = []
    for row in rows:
        run, result = row["run"], row.get("result", {})
        text = f"{result['dev']:.2f}" if row["status"] == "done" else "failed"
        shown.append((run["encoder"], run["task"], run["language"], run["shots"] or "all", run["recipe"]["lr"], text))
    table(("encoder", "task", "language", "shots", "lr", "validation"), shown)
    show_failures(rows)
    for one in best:
        which = f"{one['language']} {one['shots']}"
        say(f"best for {which}: lr {one['lr']:g}, validation {one['dev']:.2f}, {one['weights']}")
    for row in rows if not best else ():
        for note in row.get("result", {}).get("notes", ()):
            say(note)
        if row["status"] == "done":
            say("weights", row["result"]["weights"])
