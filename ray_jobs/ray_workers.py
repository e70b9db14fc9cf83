"""What runs in Ray's processes: decoding a unit, and a model."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cache import Failure, Regions
from extractor.images import DecodedImage, DecodePolicy, decode

from .decoding import attempt, fetch
from .model import Choices, Load, Model, run_model
from .work import Task

MOST_BYTES = 256 * 2**20  # of pixels in a unit, unless a single image has more


@dataclass(frozen=True)
class Job:
    """How a model is made, in any process; relative paths start at `folder`."""

    load: Load
    choices: Choices
    folder: str


@dataclass(frozen=True)
class Decoded:
    """What became of the first tasks of a unit.

    Attributes:
        outcomes: of each, its failure, True for an image, False for one that is that of the record. Fewer than there
            are tasks when their images take too much memory.
        seconds: that it took.
    """

    outcomes: list[Failure | bool]
    seconds: float


def decode_unit(
    tasks: Sequence[Task], policy: DecodePolicy, folder: str
) -> Iterator[None | list[DecodedImage] | Decoded]:
    """Read and decode the images of tasks; relative paths start at `folder`.

    Yields:
        None, at once, so that the time it takes can be told from the time it waits for a CPU; the images; and what
        became of the tasks, which is small.
    """
    yield None
    _work_in(folder)
    begin = time.perf_counter()
    outcomes: list[Failure | bool] = []
    images: list[DecodedImage] = []
    for task in tasks:
        result = fetch(task, policy)
        if isinstance(data := result, bytes):
            result = attempt(task.item, lambda data=data, key=task.item.key: decode(data, key, policy))
        if isinstance(result, DecodedImage):
            images.append(result)
        outcomes.append(result if isinstance(result, Failure) else result is not None)
        if sum(image.rgb.nbytes for image in images) > MOST_BYTES:
            break
    yield images
    yield Decoded(outcomes, time.perf_counter() - begin)


class ModelWorker:
    """An actor that holds a model."""

    def __init__(self, job: Job):
        self._job = job
        self._model: Model

    def start(self) -> str:
        """Load the model; returns its device. Not done when the actor is made, as Ray would hide what it raises."""
        _work_in(self._job.folder)
        self._model = self._job.load(self._job.choices)
        return str(self._model.device)

    def extract(
        self, images: Sequence[DecodedImage], keys: Sequence[str], sources: Sequence[str]
    ) -> tuple[list[Regions | Failure], float]:
        """Results of decoded images, and the seconds that they took."""
        begin = time.perf_counter()
        results = run_model(self._model, images, keys, sources)
        return results, time.perf_counter() - begin


def precision_of(choices: Choices) -> str:
    """What `auto` means on a node."""
    from extractor.devices import resolve_device, resolve_precision

    return resolve_precision(choices.precision, resolve_device(choices.device), choices.preset.faithful)


def _work_in(folder: str) -> None:
    with contextlib.suppress(OSError):  # a node without it works with absolute paths alone
        os.chdir(folder)
