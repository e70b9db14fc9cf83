"""The write stage on Ray: the commits of this process, or several writers, each on the disk of a node."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cache import Failure, InfrastructureLost, Regions
from cache.parts import owner_of

from .blame import Retries, Unit
from .committer import Committer
from .ray_cluster import Cluster
from .ray_errors import raise_bug
from .ray_workers import Stored, WriterWorker, merge_results
from .work import UNIT, Outcome, Task, Work

CALLS_QUEUED = 3  # of each writer
PARTS_WAITING = 2
MOST_LOSSES = 10
MOST_FAILED_CALLS = 100
CLOSING_SECONDS = 5.0

log = logging.getLogger("roivault")

Outcomes = Sequence[Failure | bool]  # of decoding, see `Decoded`


class WriteStage(Protocol):
    """Takes the results of units.

    Attributes:
        shares: how many parts the models split results into, by the owners of the keys; 0 when they come here.
    """

    shares: int

    def put(self, tasks: Sequence[Task], outcomes: Outcomes, results: Sequence) -> None:
        """Commit a unit: `results` are those of the images that were decoded, or references to the shares of them."""

    def room(self) -> bool:
        """Whether more results can be taken."""

    def references(self) -> list[ray.ObjectRef]:
        """What to wait for."""

    def collect(self, reference: ray.ObjectRef) -> None:
        """Take what has become of something that ended."""

    def follow(self) -> None:
        """Make up for what is gone."""

    def settled(self) -> bool:
        """Whether all that was put is in the store; with several writers, what is open is sealed for that."""

    def close(self, keep: bool) -> None:
        """End; with `keep`, see first that the store has as much as possible."""


class DriverWriter:
    """Commits in this process."""

    shares = 0

    def __init__(self, committer: Committer):
        self._committer = committer

    def put(self, tasks: Sequence[Task], outcomes: Outcomes, results: Sequence[Regions | Failure]) -> None:
        self._committer.put(tasks, merge_results(outcomes, results))

    def room(self) -> bool:
        return True  # `put` waits

    def references(self) -> list[ray.ObjectRef]:
        return []

    def collect(self, reference: ray.ObjectRef) -> None:
        raise AssertionError(reference)

    def follow(self) -> None:
        pass

    def settled(self) -> bool:
        return True  # the committer sees to it

    def close(self, keep: bool) -> None:
        pass


@dataclass(eq=False)
class _Writer:
    """An actor.

    Attributes:
        calls: what it was given and has not answered, in order; no tasks are the wish that it seals its part.
        kept: part -> what was committed to it, until it is registered.
        moving: parts on their way to the URL.
        failed: calls in a row that did not get what they were to store.
    """

    number: int
    actor: ray.actor.ActorHandle
    node: str
    calls: deque[tuple[ray.ObjectRef, list[Task]]] = field(default_factory=deque)
    kept: dict[int, list[tuple[Task, Outcome]]] = field(default_factory=dict)
    moving: dict[ray.ObjectRef, int] = field(default_factory=dict)
    failed: int = 0


class WriterStage:
    """Several writers. One that is lost, with its process or its node, costs what it had not brought to the URL yet.

    Args:
        count: of writers.
        cluster: the nodes, over which they are spread.
        retries: is told what has to be done again.
        work: counts, and registers what is brought.
    """

    def __init__(self, count: int, cluster: Cluster, retries: Retries, work: Work):
        self.shares, self._cluster, self._retries, self._work = count, cluster, retries, work
        self._plan = ray.put(work.collector.plan())
        self._actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups={"bring": 1})(
            WriterWorker
        )
        self._writers: dict[int, _Writer] = {}
        self._losses = 0  # in a row
        for number in range(count):  # while models are loaded
            self._start(number)

    def put(self, tasks: Sequence[Task], outcomes: Outcomes, results: Sequence[ray.ObjectRef]) -> None:
        pairs: dict[int, list[tuple[Task, Failure | bool]]] = {}
        for task, outcome in zip(tasks, outcomes, strict=True):
            pairs.setdefault(owner_of(task.item.key, self.shares), []).append((task, outcome))
        for number, mine in pairs.items():
            writer, own = self._writers.get(number) or self._start(number), [task for task, _ in mine]
            decoded = [outcome for _, outcome in mine]
            share = results[number] if True in decoded else ()
            writer.calls.append((writer.actor.store.remote(list(map(_light, own)), decoded, share), own))

    def room(self) -> bool:
        writers = self._writers.values()
        return all(len(w.calls) < CALLS_QUEUED and len(w.moving) < PARTS_WAITING for w in writers)

    def references(self) -> list[ray.ObjectRef]:
        writers = self._writers.values()
        return [ref for w in writers for ref in [*(ref for ref, _ in list(w.calls)[:1]), *w.moving]]

    def collect(self, reference: ray.ObjectRef) -> None:
        """Raises: what a writer raises; InfrastructureLost: too much was lost, or what no second try brings back."""
        for writer in list(self._writers.values()):
            if reference in writer.moving:
                self._take(writer, self._registered, reference)
            elif writer.calls and writer.calls[0][0] == reference:
                self._take(writer, self._stored, reference)

    def follow(self) -> None:
        nodes = {node.id for node in self._cluster.nodes}
        for writer in [writer for writer in self._writers.values() if writer.node not in nodes]:
            self._lose(writer, "its node is gone")

    def settled(self) -> bool:
        writers = self._writers.values()
        for writer in writers:
            if not writer.calls and set(writer.kept) - set(writer.moving.values()):
                writer.calls.append((writer.actor.seal.remote(), []))
        return not any(writer.calls or writer.moving for writer in writers)

    def close(self, keep: bool) -> None:
        while keep and not self.settled():
            self._cluster.check()
            self.follow()
            for reference in ray.wait(self.references(), timeout=1.0)[0]:
                try:
                    self.collect(reference)
                except Exception as error:  # the one that ends the job is on its way already
                    log.warning("%s", error)
        ending = [writer.actor.close.remote() for writer in self._writers.values()]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=CLOSING_SECONDS)
        for writer in self._writers.values():
            ray.kill(writer.actor)
        self._writers.clear()

    def _start(self, number: int) -> _Writer:
        """A writer on the node that has the fewest."""
        there = Counter(writer.node for writer in self._writers.values())
        nodes = [node for node in self._cluster.nodes if node.cpus] or self._cluster.nodes
        node = min(nodes, key=lambda node: (there[node.id], node.id))
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = self._actor.options(scheduling_strategy=strategy).remote(self._plan, number, self._work.on_duplicate)
        self._writers[number] = writer = _Writer(number, actor, node.id)
        return writer

    def _take(self, writer: _Writer, what: Callable[[_Writer, ray.ObjectRef], None], reference: ray.ObjectRef) -> None:
        """Do `what` with a reference; whatever it raises, the writer is used no more."""
        try:
            what(writer, reference)
        except RayError as error:
            if not isinstance(error, RayTaskError) or isinstance(error.cause, RayError):
                self._lose(writer, error)
            else:
                self._end(writer)
                raise_bug(error)
        except BaseException:
            self._end(writer)
            raise

    def _stored(self, writer: _Writer, reference: ray.ObjectRef) -> None:
        try:
            stored: Stored = ray.get(reference)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            writer.failed += 1
            if not isinstance(cause, RayError) or isinstance(cause, RayActorError) or writer.failed > MOST_FAILED_CALLS:
                raise
            _, tasks = writer.calls.popleft()  # what was to be stored was lost on its way, with another node
            if tasks:
                self._retries.waiting.append(Unit(tasks))
            return
        _, tasks = writer.calls.popleft()
        writer.failed = 0
        self._work.count(tasks, stored.committed._replace(seconds=stored.committed.seconds / self.shares))
        changed = [(_without_image(t), o) for t, o in zip(tasks, stored.committed.outcomes, strict=True) if o.changed]
        if changed:
            writer.kept.setdefault(stored.part, []).extend(changed)
        if stored.ended:
            bringing = writer.actor.bring.remote(stored.part, self._work.collector.next_number())
            writer.moving[bringing] = stored.part

    def _registered(self, writer: _Writer, reference: ray.ObjectRef) -> None:
        part = ray.get(reference)
        self._work.collector.register(part)
        del writer.kept[writer.moving.pop(reference)]
        self._losses = 0

    def _lose(self, writer: _Writer, reason: object) -> None:
        """Give a writer up; what it had not brought is done again. Raises: InfrastructureLost."""
        log.warning("writer %d is gone: %s", writer.number, reason)
        self._end(writer)
        tasks = [task for _, given in writer.calls for task in given]
        for task, outcome in (pair for part in writer.kept.values() for pair in part):
            self._work.take_back(task, outcome)
            tasks.append(task)
        self._losses += 1
        if self._losses > MOST_LOSSES or any(task.item.locator is None for task in tasks):
            raise InfrastructureLost(
                f"a writer was lost with {len(tasks)} images that are not in the store yet, "
                f"{self._losses} in a row, or its images came by a stream, which is read once: {reason}. What is "
                "registered is kept; run the same line again"
            )
        self._retries.waiting.extend(Unit(tasks[i : i + UNIT]) for i in range(0, len(tasks), UNIT))

    def _end(self, writer: _Writer) -> None:
        del self._writers[writer.number]
        ray.kill(writer.actor)


def _light(task: Task) -> Task:
    """What a writer needs of a task."""
    return replace(task, item=replace(task.item, locator=None))


def _without_image(task: Task) -> Task:
    """What is remembered of a task until it is registered."""
    return _light(task) if task.item.carried else task
