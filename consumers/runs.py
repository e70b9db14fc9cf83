"""One run: an encoder, a task, a language and a set-up, joined with stores and annotations; what a cluster fans out.

Runs are plain data, so that they travel and serve as the key of their row in a results table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from cache import UsageError, WeightsError

from .encoders import list_encoders
from .evaluation import predict_answers, score_captions, score_embeddings
from .models.base import Model
from .negatives import HardNegatives
from .objectives import objective_of
from .oddities import oddities, without_class
from .predictions import score_predictions
from .recipes import Recipe, own_recipe, published_recipe, with_quirks
from .setting import TASK_OPTIONS, Setting
from .tasks import Selection, Task
from .training import BEST, Progress, Trainer, weights_of

SHOT_SETUPS = ("few-shot", "max-shot")
SETUPS = ("zero-shot", "translate-test", "few-shot", "max-shot", "translate-train")
DEV_SETS = ("english", "target", "translated")
CANDIDATES = "1000"  # pictures that an encoder, which looks at each pair, ranks of a task that has so many more
TARGET_DEV = ("xgqa",)  # tasks whose few-shot runs were validated in the language itself

Report = Callable[[int, int], None]
Tell = Callable[[str], None]  # is told what is unusual about the data, before the work; the result has it as well


@dataclass(frozen=True)
class EvaluationRun(Setting):
    """A checkpoint on the test set of one language.

    Attributes:
        setup: one of SETUPS; "translate-test" reads texts that were translated into English.
        shots: of the few-shot set that the checkpoint was trained on; of "few-shot" and "max-shot" only.
        eval_set: of xGQA and XVNLI, see `Xgqa` and `Xvnli`.
        batch_size: examples at a time; matters to the results of VL-BERT under `legacy` only.
        shuffled: give each picture the regions of another one; what is right then does not come from the pictures.
        translate: for tasks that are translated here, what `Translator` takes.
        candidates: pictures to rank of XM3600, a number or "full"; None for all, of encoders CANDIDATES.
        weights: size and time of the checkpoint, see `checkpoint_identity`: another one under its name is another run.
    """

    setup: str = "zero-shot"
    shots: str | None = None
    eval_set: str | None = None
    batch_size: int = 64
    shuffled: bool = False
    translate: str | None = None
    candidates: str | None = None
    weights: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        rest = f"{f'-{self.shots}' if self.shots else ''}{'-shuffled' if self.shuffled else ''}"
        return f"{self.encoder}-{self.task}-{self.language}-{self.setup}{rest}"

    @property
    def file_name(self) -> str:
        """How the names of its files begin: runs that differ in anything have files of their own."""
        return f"{self.name}-{xxhash.xxh3_64_hexdigest(json.dumps(asdict(self), sort_keys=True).encode())[:8]}"

    @property
    def tested(self) -> Task:
        """The task with the evaluation set that was asked for. Raises: UsageError."""
        pairs = self.encoder in list_encoders() and self.task in TASK_OPTIONS["candidates"]
        candidates = self.candidates or (CANDIDATES if pairs else None)
        return self.load_task(eval_set=self.eval_set, translate=self.translate, candidates=candidates)

    @property
    def selection(self) -> Selection:
        """Raises: UsageError."""
        if self.setup not in SETUPS:
            raise UsageError(f"set-up {self.setup!r} is not one of {', '.join(SETUPS)}")
        if self.shots and self.setup not in SHOT_SETUPS:
            raise UsageError(f"shots are told of the set-ups {' and '.join(SHOT_SETUPS)}, not of {self.setup}")
        known = dict.fromkeys(one.shots for one in self.tested.counts if one.shots)
        if self.shots and self.shots not in known:
            raise UsageError(f"{self.task} has no set of {self.shots} shots; there are {', '.join(known) or 'none'}")
        return Selection("test", self.language, translated=self.setup == "translate-test" and self.language != "en")


def evaluate(
    run: EvaluationRun, folder: str | Path, progress: Report | None = None, tell: Tell = lambda note: None
) -> dict[str, Any]:
    """Predict the test set, leave the predictions in `folder` in the published layout, and score them.

    Retrieval leaves a matrix of scores beside the lists of the 20 best pictures, and goes on with one that is there.

    Raises: as `Setting.data` and `Setting.build`; WeightsError: the checkpoint lacks weights, those of the head say.
    """
    folder = Path(folder)
    task = run.tested
    encoder = run.build(task)
    if encoder.report and (fresh := encoder.report.fresh):
        raise WeightsError(
            f"{run.checkpoint} lacks {len(fresh)} tensors that {run.encoder} answers {task.name} with, such as "
            f"{fresh[0]}: give a checkpoint that was fine-tuned on the task"
        )
    writes = isinstance(encoder, Model) and encoder.writes
    recipe = encoder.recipe if isinstance(encoder, Model) else own_recipe(task.name, run.encoder)
    data = run.data(encoder, task, [run.selection], recipe.max_tokens if recipe else task.max_tokens, run.shuffled)
    classes = [] if writes or run.selection.translated else without_class(task, data.examples)
    notes = [*task.notes(), *data.notes, *classes]
    for note in notes:
        tell(note)
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / f"{run.file_name}_result.json"
    if task.metric == "recall":
        matrix = folder / f"{run.file_name}_scores.npy"
        score = score_embeddings if isinstance(encoder, Model) else score_captions
        scores = score(encoder, data, matrix, task.head, run.on, run.bfloat16, progress)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :20].tolist()
        write_json(result, best)
        scored = score_predictions(task, matrix, run.selection)
    else:
        answers = predict_answers(encoder, task, data, run.batch_size, run.on, run.bfloat16, progress)
        said = task.said_in_the_end([answer["prediction"] for answer in answers], run.selection)
        write_json(result, [{**answer, "prediction": one} for answer, one in zip(answers, said, strict=True)])
        scored = score_predictions(task, result, run.selection)
    return {**scored, "predictions": result.name, "notes": notes, "key_forms": data.forms}


def checkpoint_identity(checkpoint: str | None) -> tuple[int, int] | None:
    """Size and time of the checkpoint: another file under the same name has another."""
    if checkpoint is None or not os.path.exists(checkpoint):
        return None
    status = os.stat(checkpoint)
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class FinetuneRun(Setting):
    """Fine-tuning on a training set.

    Attributes:
        shots: of a few-shot set; None for the full one.
        translated: train on texts that were translated into the language.
        dev: what the best weights are chosen by: "english", "target" (the language's own) or "translated" into it;
            None for what was published.
        recipe: hyper-parameters; None for the published ones.
        weights: of the checkpoint, as those of `EvaluationRun`.
    """

    shots: str | None = None
    translated: bool = False
    dev: str | None = None
    recipe: Recipe | None = None
    weights: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        shots = f"-{self.shots}" if self.shots else ""
        rate = f"-lr{self.resolved.lr:g}" if self.shots else ""
        elsewhere = f"-on-{self.train_on.replace(':', '-')}" if self.train_on else ""
        seed = f"-seed{self.resolved.seed}" if self.resolved.seed else ""
        translated = "-translated" if self.translated else ""
        return f"{self.encoder}-{self.task}-{self.language}{elsewhere}{shots}{translated}{rate}{seed}"

    @property
    def resolved(self) -> Recipe:
        """Raises: UsageError."""
        return self.recipe or published_recipe(self.task, self.encoder, self.shots)

    @property
    def languages(self) -> Sequence[str]:
        """Those of `language`, "en,fr" or "all" of the training set. Raises: UsageError."""
        task = self.load_task()
        return getattr(task, "training", task).languages if self.language == "all" else self.language.split(",")

    @property
    def train_selections(self) -> list[Selection]:
        """Raises: UsageError."""
        return [Selection("train", language, self.shots, self.translated) for language in self.languages]

    @property
    def dev_selections(self) -> list[Selection]:
        """Raises: UsageError."""
        dev = self.dev or ("target" if self.task in TARGET_DEV and self.shots else "english")
        if dev not in DEV_SETS:
            raise UsageError(f"dev set {dev!r} is not one of {', '.join(DEV_SETS)}")
        translated = dev == "translated"
        languages = ["en"] if dev == "english" else self.languages
        return [Selection("dev", language, translated=translated and language != "en") for language in languages]


def finetune(
    run: FinetuneRun,
    folder: str | Path,
    report: Callable[[Progress, dict[str, float] | None, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    wandb: str | None = None,
    tell: Tell = lambda note: None,
) -> dict[str, Any]:
    """Fine-tune, or go on with a run of the same facts in `folder`.

    Args:
        report: called after updates and validations with the progress, the scores of a validation, and how many
            updates there are.
        stop: asked after every update; the run can be continued.
        wandb: project of Weights & Biases that is told of the run.

    Raises: as `Setting.data`, `Setting.build` and `Trainer`; DataError: no row has a label.
    """
    recipe = with_quirks(run.resolved, run.task, run.encoder) if run.legacy else run.resolved
    task = run.load_task()
    torch.manual_seed(recipe.seed)
    encoder = run.build(task)
    data = run.data(encoder, task, run.train_selections, recipe.max_tokens)
    dev = run.data(encoder, task, run.dev_selections, recipe.max_tokens, most=recipe.dev_items)
    drawn = [str(encoder.report)] if encoder.report and encoder.report.fresh else []
    notes = [*data.notes, *oddities(task, data, dev, isinstance(encoder, Model) and encoder.writes), *drawn]
    for note in notes:
        tell(note)
    if isinstance(encoder, Model):
        objective = encoder.objective(task)
    else:
        hard = task.metric == "recall" and recipe.hard_negatives and len(data.keys) > 1
        objective = objective_of(task, encoder.config, HardNegatives(data) if hard else None, recipe.loss)
    facts = {**asdict(replace(run, recipe=None, device="auto")), "weights": checkpoint_identity(run.checkpoint)}
    trainer = Trainer(
        encoder, task.head, objective, data, dev, recipe, folder, facts, run.on, run.bfloat16,
        report=report and (lambda progress, scores: report(progress, scores, trainer.updates)), wandb=wandb,
    )  # fmt: skip
    progress = trainer.run(stop)
    return {
        "finished": progress.epoch >= recipe.epochs, "updates": progress.updates, "dev": progress.best,
        "best_update": progress.best_update, "weights": str(weights_of(encoder, Path(folder) / BEST)), "notes": notes,
        "key_forms": data.forms,
    }  # fmt: skip


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(value), "utf-8")
    os.replace(partial, path)
