"""Fine-tuning: one loop for every task, encoder and number of processes.

A run is a folder. `state.pt` holds all that the next update depends on, so a run that was killed goes on as if nothing
had happened: on one machine its weights end up the same. `best.safetensors` are the weights of the best validation,
`last.safetensors` those of the end; what `RunLog` tells is there as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cache import DataError, StoreMismatch
from cache.files import disk_errors

from .data import Inputs, TaskData
from .encoders import Encoder, save_encoder
from .evaluation import autocast
from .models.base import Model
from .models.data import ModelData
from .objectives import Objective, Pairs
from .optimizer import optimizer_of, schedule_of
from .ranks import Ranks
from .recipes import Recipe
from .run_log import RunLog

STATE, BEST, LAST = "state.pt", "best.safetensors", "last.safetensors"
VALIDATION_BATCH = 256  # pairs

Micro = tuple[Inputs, Tensor, float]  # a process's part of a micro-batch: inputs, target, weight of its loss


def weights_of(model: Encoder | Model, path: Path) -> Path:
    """Where weights lie that are kept as `path`: of a model beside the encoders, a folder without the suffix."""
    return path.with_suffix("") if isinstance(model, Model) else path


def save_weights(model: Encoder | Model, path: Path) -> None:
    """Write what the model is loaded from, see `weights_of`."""
    if isinstance(model, Model):
        model.save(weights_of(model, path))
    else:
        save_encoder(model, path)


class Scorer(nn.Module):
    """An encoder with one of its heads: inputs in, logits out. What distributed training wraps."""

    def __init__(self, encoder: Encoder | Model, head: str):
        super().__init__()
        self.encoder, self.name = encoder, head

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.encoder.head(self.name)(self.encoder(*inputs)).float()


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        epoch, item: where the next update begins: whole epochs done, and items of the present one.
        updates: done so far.
        rate: the learning rate of the last of them.
        loss: mean of the updates since the last validation.
        best: the best validation score in percent, -1 before the first.
        best_update: after how many updates that was.
    """

    epoch: int = 0
    item: int = 0
    updates: int = 0
    rate: float = 0.0
    loss: float = 0.0
    best: float = -1.0
    best_update: int = 0
    losses: list[float] = field(default_factory=list)


class Trainer:
    """One fine-tuning run.

    Args:
        encoder: with the head that the task needs, or a model beside the encoders; trained in place.
        head: its name.
        objective: what batches are made of, and the loss.
        data, dev: examples to train on and to choose the best weights by.
        recipe: hyper-parameters.
        folder: of the run; made, or continued if it holds an unfinished run of the same facts.
        facts: what the run is, so that another one is not continued in its place: JSON.
        device: where the encoder is.
        bfloat16: autocast.
        save_every: updates between two writes of the state, which is also written after every validation.
        report: called after each update and validation.
        wandb: project of Weights & Biases that is told of the run.

    Attributes:
        updates: how many there are in all.

    Raises:
        UsageError: Weights & Biases is not installed.
        StoreMismatch: the folder holds a run of other facts.
        DataError: nothing to train on, or the loss is not finite.
    """

    def __init__(
        self,
        encoder: Encoder | Model,
        head: str,
        objective: Objective,
        data: TaskData | ModelData,
        dev: TaskData | ModelData,
        recipe: Recipe,
        folder: str | Path,
        facts: dict[str, Any] | None = None,
        device: torch.device | str = "cpu",
        bfloat16: bool = False,
        save_every: int = 1000,
        report: Callable[[Progress, dict[str, float] | None], None] | None = None,
        wandb: str | None = None,
    ):
        if not len(data):
            raise DataError("there are no examples to train on")
        self._items = recipe.items(len(data))
        self.updates = -(-self._items // recipe.batch) * recipe.epochs
        if recipe.most_updates:
            self.updates = min(self.updates, recipe.most_updates)
        self.encoder, self.head, self.objective = encoder, head, objective
        self.data, self.dev, self.recipe = data, dev, recipe
        self.folder, self.device, self.bfloat16 = Path(folder), torch.device(device), bfloat16
        self.save_every, self._report = save_every, report or (lambda progress, scores: None)
        self.ranks = Ranks.here()
        self.progress = Progress()
        self.facts = json.loads(json.dumps({**(facts or {}), "recipe": asdict(recipe), "examples": len(data)}))
        torch.manual_seed(recipe.seed + self.ranks.rank)
        self.scorer: nn.Module = Scorer(encoder.to(self.device), head)
        if self.ranks.count > 1:
            self.scorer = nn.parallel.DistributedDataParallel(self.scorer, find_unused_parameters=True)
        self.parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
        self.optimizer = optimizer_of(encoder, recipe)
        self.schedule = schedule_of(self.optimizer, recipe, len(data))
        self._load()
        self._log = RunLog(self.folder, self.progress.updates, self.facts, wandb) if self.ranks.rank == 0 else None

    # -- the loop

    def run(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Train to the end, or until `stop` says so in any process, which is asked after every update and leaves the
        state on disk.

        Raises:
            DataError: the loss is not finite.
            DiskError: what is to be kept cannot be written; the state before is intact.
        """
        with disk_errors(self.folder), self._log or nullcontext():
            self._run(stop)
        return self.progress

    def _run(self, stop: Callable[[], bool]) -> None:
        recipe, progress = self.recipe, self.progress
        while progress.epoch < recipe.epochs:
            self.scorer.train()
            with ThreadPoolExecutor(1, thread_name_prefix="batches") as reader:
                for micros in self._updates(reader):
                    self._update(micros)
                    done = progress.item >= self._items
                    if done:
                        progress.epoch, progress.item = progress.epoch + 1, 0
                    if last := progress.updates == self.updates:
                        progress.epoch, progress.item = recipe.epochs, 0
                    if done or last or recipe.validate_every and progress.updates % recipe.validate_every == 0:
                        self._validate()
                    elif progress.updates % self.save_every == 0:
                        self._save()
                    self._report(progress, None)
                    if self.ranks.any(stop(), self.device):
                        self._save()
                        return
                    if last:
                        break
        if self.ranks.rank == 0:
            save_weights(self.encoder, self.folder / LAST)

    def _updates(self, reader: ThreadPoolExecutor) -> Iterator[list[Micro]]:
        """The micro-batches of each update of the rest of this epoch; the next ones are read meanwhile."""
        recipe, epoch = self.recipe, self.progress.epoch
        order = np.random.default_rng([recipe.seed, epoch]).permutation(len(self.data))[: self._items]
        starts = range(self.progress.item, len(order), recipe.batch)
        ahead = [reader.submit(self._read, order, start) for start in starts[:2]]
        for place in range(len(starts)):
            micros = ahead.pop(0).result()
            if place + 2 < len(starts):
                ahead.append(reader.submit(self._read, order, starts[place + 2]))
            yield micros

    def _read(self, order: np.ndarray, start: int) -> list[Micro]:
        """This process's part of one update. All processes draw the same wrong options, so each has those that one
        alone would have."""
        recipe, found = self.recipe, []
        for first in range(start, min(start + recipe.batch, len(order)), recipe.micro):
            rows = order[first : min(first + recipe.micro, start + recipe.batch)]
            rng = np.random.default_rng([recipe.seed, self.progress.epoch, first])
            pairs = self.objective.pairs(self.data, rows.tolist(), rng)
            own = pairs.of(self.ranks.part(np.arange(len(rows))))
            found.append((*self._inputs(self.data, own), self.ranks.weight(len(rows))))
        return found

    def _inputs(self, data: TaskData | ModelData, pairs: Pairs) -> tuple[Inputs, Tensor]:
        """In pinned memory for a GPU, which then copies them while it computes."""
        inputs, target = data.inputs(pairs.texts, pairs.images), pairs.target
        return (inputs.pinned(), target.pin_memory()) if self.device.type == "cuda" else (inputs, target)

    def _update(self, micros: Sequence[Micro]) -> None:
        progress, losses = self.progress, []
        for place, (inputs, target, weight) in enumerate(micros):
            with autocast(self.device, self.bfloat16), self._no_sync(place < len(micros) - 1):
                logits = self.scorer(*inputs.to(self.device))
                target = target.to(self.device, non_blocking=True)
                loss = self.objective.loss(logits, target) * weight / self.recipe.accumulate
            loss.backward()
            losses.append(loss.detach())
        total = torch.stack(losses).sum().item()  # the one wait for the device
        (total,) = (value / self.ranks.count for value in self.ranks.sum([total], self.device))
        if not np.isfinite(total):
            raise DataError(
                f"the loss is {total} at update {progress.updates}: lower the learning rate, which is "
                f"{self.schedule.get_last_lr()[0]:.3g}"
            )
        progress.rate = self.schedule.get_last_lr()[0]
        if self.recipe.clip:
            nn.utils.clip_grad_norm_([p for p in self.parameters if p.grad is not None], self.recipe.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        progress.updates += 1
        progress.item += self.recipe.batch
        progress.losses.append(total)
        progress.loss = float(np.mean(progress.losses))
        if self._log:
            images = sum(len(inputs[0]) for inputs, _, _ in micros) * self.ranks.count
            self._log.update(progress.updates, total, progress.rate, images)

    def _no_sync(self, more: bool) -> AbstractContextManager:
        return self.scorer.no_sync() if more and self.ranks.count > 1 else nullcontext()

    # -- validation

    def _validate(self) -> None:
        """Score the dev set, note it, and keep the weights if none were better so far."""
        progress = self.progress
        score = self.score(self.dev)
        if score > progress.best:
            progress.best, progress.best_update = score, progress.updates
            if self.ranks.rank == 0:
                save_weights(self.encoder, self.folder / BEST)
        line = {"update": progress.updates, "epoch": progress.epoch, "loss": progress.loss, "dev": score}
        progress.losses.clear()
        if self._log:
            self._log.validation(line)
        self._save()
        self._report(progress, line)

    @torch.no_grad()
    def score(self, data: TaskData | ModelData) -> float:
        """Percent of the examples that are right; of retrieval, captions whose picture beats three others."""
        self.encoder.eval()
        right, items = torch.zeros((), dtype=torch.float64, device=self.device), 0
        step = VALIDATION_BATCH // 4
        own = range(self.ranks.rank * step, len(data), step * self.ranks.count)
        for start in own:
            rows = list(range(start, min(start + step, len(data))))
            inputs, target = self._inputs(data, self.objective.pairs(data, rows, np.random.default_rng([0, start])))
            with autocast(self.device, self.bfloat16):
                logits = self.encoder.head(self.head)(self.encoder(*inputs.to(self.device))).float()
            right += self.objective.score(logits, target.to(self.device, non_blocking=True))
            items += len(rows)
        self.encoder.train()
        right, items = self.ranks.sum([right.item(), items], self.device)
        return 100 * right / items

    # -- state

    def _save(self) -> None:
        """Write the state in the place of the earlier one. Each process has random numbers of its own."""
        generators = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.device)
        if self.ranks.count > 1:
            gathered = [None] * self.ranks.count
            torch.distributed.all_gather_object(gathered, generators)
        else:
            gathered = [generators]
        if self._log is None:
            return
        self._log.flush()
        state = {
            "facts": self.facts,
            "progress": asdict(self.progress),
            "encoder": self.encoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generators": gathered,
        }
        partial = self.folder / f"{STATE}.partial"
        try:
            with open(partial, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.folder / STATE)
        except BaseException as error:
            partial.unlink(missing_ok=True)
            hidden = error.__context__  # behind an error of torch's own
            raise hidden if isinstance(hidden, OSError) else error from None

    def _load(self) -> None:
        """Continue where the folder's state ends. Raises: StoreMismatch, DataError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / STATE
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            facts = state["facts"]
        except Exception as error:
            raise DataError(f"{path} cannot be read ({error}); delete it to begin this run anew") from error
        if facts != self.facts:
            names = sorted(name for name in {*facts, *self.facts} if facts.get(name) != self.facts.get(name))
            changes = "; ".join(f"{name}: {facts.get(name)} there, {self.facts.get(name)} asked" for name in names)
            raise StoreMismatch(f"{self.folder} holds another run ({changes}): choose another folder")
        self.encoder.load_state_dict(state["encoder"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.progress = Progress(**state["progress"])
        best = weights_of(self.encoder, self.folder / BEST)
        if self.progress.best_update and not best.exists():
            raise DataError(f"{best} is not there, though {path} tells of it; delete {path} to begin this run anew")
        generators = state["generators"]
        if len(generators) == self.ranks.count:
            torch.set_rng_state(generators[self.ranks.rank]["cpu"])
            if "cuda" in generators[self.ranks.rank] and self.device.type == "cuda":
                torch.cuda.set_rng_state(generators[self.ranks.rank]["cuda"], self.device)
