"""What a fine-tuning run tells of its course: in its folder `log.jsonl`, with a line for each validation, and events of
TensorBoard; and to Weights & Biases, where a project of it is given.

A run that was killed has told of updates that its state does not know, and makes them again: what was told of them is
dropped, so no update is told of twice.
"""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xxhash

from cache import UsageError

LOG = "log.jsonl"
EVERY = 10  # updates between two that TensorBoard is told of


def check_wandb(project: str | None) -> None:
    """Raises: UsageError: a project is given, and the package for it is not installed."""
    if project and find_spec("wandb") is None:
        raise UsageError("--wandb needs Weights & Biases, which is not installed: pip install wandb")


class RunLog:
    """A context manager, at whose end all is on the disk.

    Args:
        folder: of the run; its name is the run's.
        done: updates that the run's state knows of.
        facts: what the run is.
        project: of Weights & Biases; None tells nobody.

    Raises: UsageError: the package for the project is not installed.
    """

    def __init__(self, folder: Path, done: int, facts: dict[str, Any], project: str | None = None):
        check_wandb(project)
        self._path, self._done, self._facts, self._project = folder / LOG, done, facts, project
        self._events = self._wandb = None
        self._images, self._since = 0, time.monotonic()
        if self._path.exists():
            lines = [line for line in self._path.read_text("utf-8").splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["update"] <= done]
            self._path.write_text("".join(f"{line}\n" for line in kept), "utf-8")

    def update(self, number: int, loss: float, rate: float, images: int) -> None:
        """An update, the `number`th, that was made of so many images."""
        self._images += images
        if number % EVERY and number != 1:
            return
        seconds = max(time.monotonic() - self._since, 1e-9)
        self._tell(number, {"loss": loss, "learning rate": rate, "images per second": self._images / seconds})
        self._images, self._since = 0, time.monotonic()

    def validation(self, line: dict[str, float]) -> None:
        """The scores after `line["update"]` updates."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._tell(int(line["update"]), {"validation": line["dev"]})
        self._images, self._since = 0, time.monotonic()  # validating is no training

    def flush(self) -> None:
        """Before a state is written, so that it knows of no update that is not told of."""
        if self._events:
            self._events.flush()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self._events:
            self._events.close()
        if self._wandb:
            self._wandb.finish()

    def _tell(self, number: int, values: dict[str, float]) -> None:
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self._path.parent), purge_step=self._done + 1)
            if self._project:
                self._wandb = self._begin_wandb()
        for name, value in values.items():
            self._events.add_scalar(name, value, number)
        if self._wandb:
            self._wandb.log(values, step=number)

    def _begin_wandb(self) -> Any:
        import wandb

        folder = self._path.parent
        identity = xxhash.xxh3_64_hexdigest(json.dumps([folder.name, self._facts], sort_keys=True).encode())
        return wandb.init(
            project=self._project, name=folder.name, id=identity, resume="allow", dir=str(folder), config=self._facts
        )
