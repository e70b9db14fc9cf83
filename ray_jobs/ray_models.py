"""The model stage on Ray: one model per GPU, or per group of CPU cores, on every node there is."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cache import Failure, InfrastructureLost, Regions

from .blame import Patience, Retries, Unit
from .ray_cluster import Cluster, Node
from .ray_decoding import DecodedUnit
from .ray_errors import raise_bug
from .ray_workers import Job, ModelWorker

CALLS_QUEUED = 2
MOST_START_SECONDS = 900.0
MOST_FAILED_STARTS = 3

log = logging.getLogger("roivault")

# given a unit, its results, or the references to the shares of them, and the seconds that they took
Done = Callable[[DecodedUnit, Sequence[Regions | Failure] | Sequence[ray.ObjectRef], float], None]


@dataclass(eq=False)
class _Call:
    """`reference` is to the results and seconds, or, where there are `shares` of results, to the seconds alone."""

    decoded: DecodedUnit
    reference: ray.ObjectRef
    shares: list[ray.ObjectRef]


@dataclass(eq=False)
class _Worker:
    """An actor. `since` is when it began what it does; `device` is None until its model is loaded."""

    actor: ray.actor.ActorHandle
    node: str
    since: float
    device: str | None = None
    calls: deque[_Call] = field(default_factory=deque)

    @property
    def has_suspect(self) -> bool:
        return any(call.decoded.unit.suspect for call in self.calls)


class ModelStage:
    """Runs models over decoded units; the pool grows and shrinks with the nodes.

    A suspect unit is given to a worker that has nothing else, so that nobody dies with it and nobody else is blamed.

    Args:
        job: makes a model; the device of its choices is cpu or cuda.
        models_per_gpu: that share a GPU.
        cluster: the nodes.
        retries: is told what has to be done again.
        patience: for how long.
        done: is given the results of each unit.
        shares: into how many shares results are split, which stay where they are; 0 for results that come here.
    """

    def __init__(
        self,
        job: Job,
        models_per_gpu: int,
        cluster: Cluster,
        retries: Retries,
        patience: Patience,
        done: Done,
        shares: int,
    ):
        self._job = ray.put(job)
        self._on_gpu, self._threads, self._per_gpu = job.choices.device == "cuda", job.choices.threads, models_per_gpu
        self._cluster, self._retries, self._patience, self._done = cluster, retries, patience, done
        self._shares = shares
        self._actor = ray.remote(max_restarts=0, max_task_retries=0)(ModelWorker)
        self._starting: dict[ray.ObjectRef, _Worker] = {}
        self._calls: dict[ray.ObjectRef, _Worker] = {}
        self._workers: list[_Worker] = []
        self._failed_starts: Counter[str] = Counter()  # of each node, in a row
        self._why = ""  # the last of them
        self._reserved: _Worker | None = None  # for suspects
        self.failures: list[tuple[Unit, Failure]] = []  # of images that are to blame, for the caller to take

    @property
    def devices(self) -> list[str]:
        """Of the models that are loaded."""
        return [worker.device for worker in self._workers if worker.device is not None]

    @property
    def capacity(self) -> int:
        """Number of models, loaded or not."""
        return len(self._workers)

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    @property
    def waiting_images(self) -> int:
        return sum(len(call.decoded.unit) for worker in self._workers for call in worker.calls)

    def cpus_taken(self) -> int:
        """CPUs that the models on all nodes have for themselves."""
        return 0 if self._on_gpu else sum(n * cpus for n, cpus in map(self._share, self._cluster.nodes))

    def references(self) -> list[ray.ObjectRef]:
        """What to wait for."""
        return [*self._starting, *self._calls]

    def follow(self) -> None:
        """Start models on nodes that have joined, forget those of nodes that are gone, make up for the dead.

        Raises: InfrastructureLost when no node can start a model.
        """
        nodes = {node.id: node for node in self._cluster.nodes}
        for worker in [worker for worker in self._workers if worker.node not in nodes]:
            self._lose(worker, "its node is gone")
        there = Counter(worker.node for worker in self._workers)
        for node in nodes.values():
            if self._failed_starts[node.id] >= MOST_FAILED_STARTS:
                continue
            count, _ = self._share(node)
            for _ in range(count - there[node.id]):
                self._start(node)
        if not self._workers and any(self._failed_starts.values()):
            raise InfrastructureLost(
                f"the process of the model died {MOST_FAILED_STARTS} times before the model was loaded, on every node: "
                f"{self._why}. What is committed is kept; run the same line again"
            )

    def room(self, suspect: bool) -> bool:
        """Whether `submit` may be called with such a unit now."""
        return self._choose(suspect) is not None

    def release(self) -> None:
        """There are no suspects: all workers take all units."""
        self._reserved = None

    def submit(self, decoded: DecodedUnit) -> None:
        """Give a unit to a model."""
        worker = self._choose(decoded.unit.suspect)
        assert worker is not None, "no room"
        if not worker.calls:
            worker.since = time.monotonic()
        outcomes = zip(decoded.unit.tasks, decoded.outcomes, strict=True)
        items = [task.item for task, outcome in outcomes if outcome is True]
        keys, sources = [item.key for item in items], [item.source for item in items]
        if self._shares:
            extract = worker.actor.extract_shares.options(num_returns=self._shares + 1)
            *shares, reference = extract.remote(decoded.images, keys, sources, self._shares)
        else:
            shares, reference = [], worker.actor.extract.remote(decoded.images, keys, sources)
        worker.calls.append(_Call(decoded, reference, shares))
        self._calls[reference] = worker

    def collect(self, reference: ray.ObjectRef) -> None:
        """Take what has become of a start or a call that ended."""
        if (worker := self._starting.pop(reference, None)) is not None:
            self._started(worker, reference)
        elif (worker := self._calls.get(reference)) is not None:
            call = next(call for call in worker.calls if call.reference == reference)
            try:
                self._finish(worker, call)
            except RayActorError as error:
                self._lose(worker, error, "worker_crash", "the process of the model died")
            except RayTaskError as error:
                if not isinstance(error.cause, RayError):
                    raise_bug(error)
                self._again(worker, call, error.cause)
            except RayError as error:
                self._again(worker, call, error)

    def expire(self) -> None:
        """End processes whose oldest call, or whose start, takes too long."""
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.device is None and now - worker.since > MOST_START_SECONDS:
                self._failed_starts[worker.node] += 1
                self._why = f"it was not loaded after {MOST_START_SECONDS:.0f} s"
                self._lose(worker, self._why)
            elif worker.calls and now - worker.since > self._patience.of(worker.calls[0].decoded.unit):
                self._lose(worker, "it takes too long", "timeout", "the model did not end")

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers.clear()
        self._starting.clear()
        self._calls.clear()

    def _share(self, node: Node) -> tuple[int, int]:
        """How many models a node has, and the CPUs that each has for itself. One CPU is left for decoding."""
        if self._on_gpu:
            return int(node.gpus * self._per_gpu), 0
        cpus = min(self._threads, node.cpus - 1)
        return (node.cpus > 0, 0) if cpus < 1 else ((node.cpus - 1) // cpus, cpus)

    def _start(self, node: Node) -> None:
        _, cpus = self._share(node)
        actor = self._actor.options(
            num_cpus=cpus,
            num_gpus=1 / self._per_gpu if self._on_gpu else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(self._job)
        worker = _Worker(actor, node.id, time.monotonic())
        self._workers.append(worker)
        self._starting[actor.start.remote()] = worker

    def _started(self, worker: _Worker, reference: ray.ObjectRef) -> None:
        try:
            worker.device = ray.get(reference)
            self._failed_starts[worker.node] = 0
        except RayTaskError as error:
            if not isinstance(error.cause, RayError):
                raise_bug(error)
            self._lose(worker, error)
        except RayError as error:
            if self._cluster.lives(worker.node):
                self._failed_starts[worker.node] += 1
                self._why = _why(error)
            self._lose(worker, error)

    def _finish(self, worker: _Worker, call: _Call, timeout: float | None = None) -> None:
        """Hand over the results of a call. Raises: what Ray raises, and then the call stays."""
        got = ray.get(call.reference, timeout=timeout)
        results, seconds = (call.shares, got) if self._shares else got
        self._forget(worker, call)
        worker.since = time.monotonic()
        self._patience.learn(seconds, call.decoded.outcomes.count(True))
        self._done(call.decoded, results, seconds)

    def _again(self, worker: _Worker, call: _Call, reason: object) -> None:
        self._forget(worker, call)
        worker.since = time.monotonic()
        self._retries.redo(call.decoded.unit, reason)

    def _forget(self, worker: _Worker, call: _Call) -> None:
        worker.calls.remove(call)
        del self._calls[call.reference]

    def _lose(self, worker: _Worker, reason: object, kind: str = "", text: str = "") -> None:
        """Give a worker up. Its oldest call is blamed, if there is a `kind` and its process, not its node, is gone."""
        log.warning("a model is gone: %s", reason)
        if kind == "worker_crash":  # the results of earlier calls may be there already
            for call in list(worker.calls):
                try:
                    self._finish(worker, call, timeout=1.0)
                except RayError:
                    break
        self._workers.remove(worker)
        self._starting = {ref: starting for ref, starting in self._starting.items() if starting is not worker}
        for call in worker.calls:
            del self._calls[call.reference]
        ray.kill(worker.actor)
        units = [call.decoded.unit for call in worker.calls]
        if units and kind and self._at_fault(worker, reason):
            unit = units.pop(0)
            if failure := self._retries.blame(unit, kind, text):
                self.failures.append((unit, failure))
        for unit in reversed(units):
            self._retries.redo(unit, reason)

    def _at_fault(self, worker: _Worker, reason: object) -> bool:
        """Whether a process ended on its own, rather than with its node or its connection."""
        return not isinstance(reason, ray.exceptions.ActorUnavailableError) and self._cluster.lives(worker.node)

    def _choose(self, suspect: bool) -> _Worker | None:
        """The loaded worker with the fewest calls that may take one more; for suspects, one is emptied first."""
        if self._reserved not in self._workers:
            self._reserved = None
        loaded = [worker for worker in self._workers if worker.device is not None and not worker.has_suspect]
        if suspect:
            self._reserved = self._reserved or min(loaded, key=lambda worker: len(worker.calls), default=None)
            return self._reserved if self._reserved and not self._reserved.calls else None
        free = [worker for worker in loaded if worker is not self._reserved and len(worker.calls) < CALLS_QUEUED]
        return min(free, key=lambda worker: len(worker.calls), default=None)


def _why(error: RayError) -> str:
    """Why an actor could not be made, such as a module that its node lacks; one that was killed cannot tell."""
    first, *_, last = str(error).splitlines()
    if "creation task" in first:
        return last.strip()
    if "never ran" in last:
        return "Ray gave it up before it began; see that RAY_AUTH_MODE and the token are those of the cluster"
    return "there may be too little memory for it"
