"""The Ray engine: decode tasks and model actors on every node, driven by one loop here, which also commits."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import ray

from cache import Failure, InfrastructureLost, UsageError

from .blame import Patience, Retries, Unit, Watch
from .committer import Committer
from .model import Choices, Load
from .options import ExtractOptions
from .ray_cluster import Cluster
from .ray_decoding import DecodedUnit, DecodeStage
from .ray_models import ModelStage
from .ray_workers import Job, precision_of
from .ray_writers import DriverWriter, WriterStage
from .signals import Drain
from .work import UNIT, Work

DRAIN_SECONDS = 2.0  # `ray job stop` kills after 3
MOST_STILL_SECONDS = 1800.0


class RayEngine:
    """Runs a job on a Ray cluster. Connects when it is first needed.

    Args:
        load: makes a model.
        choices: how records are made.
        drain: once requested, what is at the models may still end, briefly.
        options: the user's, of which those of the cluster are used.
        address: of the cluster, None for one of the job's own.
    """

    name = "ray"

    def __init__(self, load: Load, choices: Choices, drain: Drain, options: ExtractOptions, address: str | None):
        self._load, self._choices, self._drain = load, choices, drain
        self._options, self._address = options, address

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._address)

    def prepare(self) -> None:
        """Connect."""
        self.device()

    def precision(self) -> str:
        """What `auto` means on the device; only a model that may run in less than float32 must be asked where it is."""
        choices = replace(self._choices, device=self.device())
        if choices.precision == "auto" and choices.preset.faithful:
            on_gpu = choices.device == "cuda"
            probe = ray.remote(num_gpus=int(on_gpu), num_cpus=1 - int(on_gpu))(precision_of)
            self._choices = replace(choices, precision=ray.get(probe.remote(choices)))
        elif choices.precision == "auto":
            self._choices = replace(choices, precision="float32")
        return self._choices.precision

    def device(self) -> str:
        """cuda if the cluster has GPUs and the user does not say otherwise. Raises: UsageError for a GPU it lacks."""
        gpus = sum(node.gpus for node in self._cluster.nodes)
        if self._options.device == "cuda" and not gpus:
            raise UsageError("--device cuda was asked for, but the Ray cluster has no GPUs")
        return "cpu" if self._options.device == "cpu" or not gpus else "cuda"

    def run(self, work: Work) -> None:
        """Process every task of `work`. What was committed stays, whatever is raised.

        Raises:
            InfrastructureLost: the cluster is gone, or nothing moves any more.
            what the model, the store or the listing raises.
        """
        job = Job(self._load, replace(self._choices, device=self.device()), os.getcwd())
        with Committer(work) as committer:
            run = _Run(job, self._options, self._cluster, work, committer)
            try:
                run.until_done(self._drain)
            except BaseException as error:
                run.close(keep=not isinstance(error, InfrastructureLost))
                raise
            run.close(keep=False)

    def close(self) -> None:
        """Leave the cluster, and end it if it is the job's own."""
        if "_cluster" in vars(self):
            self._cluster.close()


class _Run:
    """The loop over one `Work`."""

    def __init__(self, job: Job, options: ExtractOptions, cluster: Cluster, work: Work, committer: Committer):
        self._cluster, self._work = cluster, work
        self._retries = Retries()
        self._ready: deque[DecodedUnit] = deque()  # for a model
        self._watch = Watch(MOST_STILL_SECONDS)
        patience = Patience(options.timeout), Patience(options.timeout)
        self._decoding = DecodeStage(job.choices.policy, job.folder, self._retries, patience[0])
        many = options.writers > 1
        self._writers = WriterStage(options.writers, cluster, self._retries, work) if many else DriverWriter(committer)
        self._models = ModelStage(
            job, options.models_per_gpu, cluster, self._retries, patience[1], self._extracted, self._writers.shares
        )

    def until_done(self, drain: Drain) -> None:
        """Until nothing is left, or for a moment after the drain is requested."""
        while not self._finished():
            if drain.requested:
                self._end_calls()
                while not self._writers.settled():
                    self._cluster.check()
                    self._writers.follow()
                    self._collect(0.2)
                return
            self._cluster.check()
            self._models.follow()
            self._writers.follow()
            self._feed()
            self._dispatch()
            self._collect(0.2)
            self._expire()
            self._report()
            if self._watch.expired:
                raise InfrastructureLost(
                    f"nothing has happened for {self._watch.limit / 60:.0f} minutes; {self._models.capacity} models "
                    f"are wanted, {len(self._models.devices)} are loaded. See to the cluster, then run the same line "
                    "again"
                )

    def close(self, keep: bool) -> None:
        """End all processes; with `keep`, those of writers after what they hold is in the store, if that can be."""
        self._models.close()
        self._writers.close(keep)

    def _finished(self) -> bool:
        at_work = self._decoding or self._ready or self._models.busy or self._retries.waiting
        return not at_work and self._work.exhausted and self._writers.settled()

    @property
    def _decode_cpus(self) -> int:
        return max(1, sum(node.cpus for node in self._cluster.nodes) - self._models.cpus_taken())

    def _feed(self) -> None:
        """Submit units for decoding, as many as keep the models and the CPUs busy."""
        limit = 2 * max(1, self._models.capacity) + max(2, self._decode_cpus)
        while len(self._decoding) + len(self._ready) < limit and (unit := self._next()):
            self._decoding.submit(unit)

    def _next(self) -> Unit | None:
        if self._retries.waiting:
            return self._retries.waiting.popleft()
        idle = not (self._decoding or self._ready or self._models.busy)
        tasks = []
        while len(tasks) < UNIT and (task := self._work.take(wait=idle and not tasks)):
            tasks.append(task)
        return Unit(tasks) if tasks else None

    def _dispatch(self) -> None:
        """Give decoded units to models that have room, suspects first."""
        suspects = [decoded for decoded in self._ready if decoded.unit.suspect]
        if not suspects:
            self._models.release()
        others = [decoded for decoded in self._ready if not decoded.unit.suspect]
        for waiting in (suspects, others):
            while waiting and self._writers.room() and self._models.room(waiting[0].unit.suspect):
                decoded = waiting.pop(0)
                self._models.submit(decoded)
                self._ready.remove(decoded)

    def _collect(self, timeout: float) -> None:
        """Take what has ended, waiting for the first of it."""
        streams, references, written = self._decoding.streams(), self._models.references(), self._writers.references()
        if not (streams or references or written):
            return
        ray.wait([*streams, *references, *written], timeout=timeout, fetch_local=False)
        # decoded images stay where they are; results come here, and are taken when they have arrived
        for stream in _ended(streams, fetch_local=False):
            decoded = self._decoding.collect(stream)
            if isinstance(decoded, DecodedUnit):
                self._decoded(decoded)
            elif decoded is not None:
                self._failed(*decoded)
        for reference in _ended(references, fetch_local=True):
            self._models.collect(reference)
        for reference in _ended(written, fetch_local=True):
            self._watch.moved()
            self._writers.collect(reference)
        self._take_failures()

    def _expire(self) -> None:
        for unit, failure in self._decoding.expire():
            self._failed(unit, failure)
        self._models.expire()
        self._take_failures()

    def _decoded(self, decoded: DecodedUnit) -> None:
        self._watch.moved()
        if True in decoded.outcomes:
            self._ready.append(decoded)
        else:  # nothing for the model to do
            self._writers.put(decoded.unit.tasks, decoded.outcomes, [])

    def _extracted(self, decoded: DecodedUnit, results: Sequence, seconds: float) -> None:
        self._watch.moved()
        images = decoded.outcomes.count(True)
        self._work.tally.spend("model", seconds / max(1, len(self._models.devices)), images)
        self._writers.put(decoded.unit.tasks, decoded.outcomes, results)

    def _failed(self, unit: Unit, failure: Failure) -> None:
        self._watch.moved()
        self._writers.put(unit.tasks, [failure], [])

    def _take_failures(self) -> None:
        for unit, failure in self._models.failures:
            self._failed(unit, failure)
        self._models.failures.clear()

    def _report(self) -> None:
        tally = self._work.tally
        tally.spend("decode", self._decoding.seconds / self._decode_cpus, self._decoding.images)
        self._decoding.seconds, self._decoding.images = 0.0, 0
        tally.devices = self._models.devices
        ready = sum(len(decoded.unit) for decoded in self._ready)
        tally.queues = {"decode": self._decoding.waiting_images, "model": ready + self._models.waiting_images}

    def _end_calls(self) -> None:
        """Let the models end what they have, for a moment."""
        end = time.monotonic() + DRAIN_SECONDS
        while self._models.busy and (left := end - time.monotonic()) > 0:
            self._collect(left)


def _ended(references: list, fetch_local: bool) -> list:
    """Those of which there is a result now."""
    if not references:
        return []
    return ray.wait(references, num_returns=len(references), timeout=0, fetch_local=fetch_local)[0]
