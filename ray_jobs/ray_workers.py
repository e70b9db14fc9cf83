"""What runs in Ray's processes: decoding a unit, and a model."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import ray

from cache import DiskError, Failure, Regions
from cache.parts import Part, PartWriter, Plan, owner_of
from extractor.images import DecodedImage, DecodePolicy, decode

from .decoding import attempt, fetch
from .model import Choices, Load, Model, run_model
from .work import Committed, Task, commit_results

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

    def extract_shares(
        self, images: Sequence[DecodedImage], keys: Sequence[str], sources: Sequence[str], count: int
    ) -> tuple:
        """The same, with the results split into `count` shares by the owners of their keys; the seconds come last."""
        results, seconds = self.extract(images, keys, sources)
        shares: list[list[Regions | Failure]] = [[] for _ in range(count)]
        for key, result in zip(keys, results, strict=True):
            shares[owner_of(key, count)].append(result)
        return *shares, seconds


class Stored(NamedTuple):
    """What became of a share of a unit, to which part it went, and whether that has ended."""

    committed: Committed
    part: int
    ended: bool


class WriterWorker:
    """An actor that is one of several writers. `bring` runs beside the rest, which runs in the order of its calls."""

    def __init__(self, plan: Plan, number: int, on_duplicate: str):
        self._plan, self._number, self._on_duplicate = plan, number, on_duplicate

    def store(
        self, tasks: Sequence[Task], outcomes: Sequence[Failure | bool], results: Sequence[Regions | Failure]
    ) -> Stored:
        """Commit what this writer owns of a unit; `results` are those of the images that were decoded."""
        with self._named():
            self._writer.earlier = {task.item.key: task.before for task in tasks if task.before is not None}
            merged = merge_results(outcomes, results)
            committed = commit_results(self._writer, tasks, merged, self._on_duplicate)
            part = self._writer.part
            return Stored(committed, part, self._writer.full and self._writer.end())

    def seal(self) -> Stored:
        """End the part."""
        with self._named():
            part = self._writer.part
            return Stored(Committed([], 0, 0.0), part, self._writer.end())

    @ray.method(concurrency_group="bring")
    def bring(self, part: int, number: int) -> Part:
        """Bring the shard of a part that has ended to the URL, as shard `number`."""
        with self._named():
            return self._writer.bring(part, number)

    def close(self) -> None:
        """Leave nothing on this disk."""
        self._writer.close()

    @cached_property
    def _writer(self) -> PartWriter:
        """Not made with the actor, as Ray would hide what it raises."""
        return PartWriter(self._plan, self._number)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Say which disk it is that is full or failing."""
        try:
            yield
        except DiskError as error:
            host = socket.gethostname()
            raise DiskError(f"writer {self._number}, process {os.getpid()} on {host}: {error}") from error


def merge_results(
    outcomes: Sequence[Failure | bool], results: Sequence[Regions | Failure]
) -> list[Regions | Failure | None]:
    """The result of each task of a unit, from what decoding and then the model came to, see `Decoded`."""
    of_model = iter(results)
    return [next(of_model) if outcome is True else outcome or None for outcome in outcomes]


def precision_of(choices: Choices) -> str:
    """What `auto` means on a node."""
    from extractor.devices import resolve_device, resolve_precision

    return resolve_precision(choices.precision, resolve_device(choices.device), choices.preset.faithful)


def _work_in(folder: str) -> None:
    with contextlib.suppress(OSError):  # a node without it works with absolute paths alone
        os.chdir(folder)
