"""What of a listing is still to be done, and the one way of a result into the store."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cache import CorruptRecord, Failure, Regions, StoreWriter, WriteResult
from cache.parts import Collector

from .listing import Chunk, Listing
from .sources import Item
from .tally import Tally

UNIT = 16  # consecutive inputs that are committed together
CANNOT_BE_READ = ("missing", "unreadable")

log = logging.getLogger("roivault")


@dataclass(frozen=True)
class Task:
    """An input to process: new (`before` is None), a failure to try again, or a record to compare with its image.

    `digest` is that of the image the record was made from, None if it is not known.
    """

    item: Item
    before: str | Failure | None = None
    digest: bytes | None = None

    @property
    def refreshes(self) -> bool:
        return self.before == "record"


class Outcome(NamedTuple):
    """What became of a task: the `failure` that the store has now, if it is one; how many `regions`, if a record came
    from it; whether a result came from it at all (`changed`), or its record stays as it was."""

    failure: Failure | None
    regions: int | None
    changed: bool


class Committed(NamedTuple):
    """What became of tasks in one transaction, the bytes of the values stored, and the seconds that it took."""

    outcomes: list[Outcome]
    nbytes: int
    seconds: float


class Writer(Protocol):
    """What results are committed to."""

    def write(self, regions: Sequence[Regions], failures: Sequence[Failure], on_duplicate: str) -> WriteResult: ...

    def states(self, keys: Sequence[str]) -> list[None | str | Failure]: ...


class Work:
    """Checks a listing against the store, hands out what is missing, and takes results back.

    The store is the only journal: an input is done if and only if the store holds a state for its key. One thread may
    take tasks while another commits results.

    Args:
        listing: the inputs.
        writer: the store.
        tally: is told what the store holds of the listing.
        retry_failed: also hand out inputs that the store holds a failure of.
        refresh_changed: also hand out inputs with a record, to compare with their images.
    """

    def __init__(
        self,
        listing: Listing,
        writer: StoreWriter,
        tally: Tally,
        retry_failed: bool = False,
        refresh_changed: bool = False,
    ):
        self.tally = tally
        self._listing, self._writer = listing, writer
        self._retry_failed, self._refresh_changed = retry_failed, refresh_changed
        self._ready: deque[Task] = deque()
        self._store = threading.Lock()  # of the writer and the counts

    @property
    def on_duplicate(self) -> str:
        """What the store does with a result whose key has a record."""
        return "replace" if self._refresh_changed else "drop"

    @property
    def collector(self) -> Collector:
        """The store, where several writers make its shards."""
        assert isinstance(self._writer, Collector)
        return self._writer

    @property
    def exhausted(self) -> bool:
        """Whether everything has been handed out."""
        return self._listing.exhausted and not self._ready

    def ready(self, wait: bool = True) -> bool:
        """Whether there is a task at the moment; looks at one more chunk of the listing, with `wait` for a moment."""
        if not self._ready and (chunk := self._listing.next(0.2 if wait else 0.0)):
            with self._store:
                self._check(chunk)
        return bool(self._ready)

    def take(self, wait: bool) -> Task | None:
        """The next task; None when there is none at the moment."""
        return self._ready.popleft() if self.ready(wait) else None

    def commit(self, tasks: Sequence[Task], results: Sequence[Regions | Failure | None]) -> None:
        """Store the results of tasks in one transaction; None says that the image is the one of the record.

        A record whose image cannot be read any more is kept: nothing says that the image changed.
        """
        with self._store:
            self.count(tasks, commit_results(self._writer, tasks, results, self.on_duplicate))

    def count(self, tasks: Sequence[Task], committed: Committed) -> None:
        """Take into account what became of tasks."""
        for task, outcome in zip(tasks, committed.outcomes, strict=True):
            self._count(task, outcome)
        self.tally.nbytes += committed.nbytes
        self.tally.spend("write", committed.seconds, len(tasks))

    def take_back(self, task: Task, outcome: Outcome) -> None:
        """What was committed is lost: the opposite of `count`, for one task."""
        self._count(task, outcome, -1)

    def _check(self, chunk: Chunk) -> None:
        begin = time.perf_counter()
        tally = self.tally
        for item in chunk.duplicates:
            self._fail(Failure(item.key, "duplicate_key", "another input has the same key", item.source), item)
        for item, state in zip(chunk.items, self._writer.states([item.key for item in chunk.items]), strict=True):
            if state is None or (isinstance(state, Failure) and self._retry_failed):
                self._ready.append(Task(item, state))
            elif isinstance(state, Failure):
                self._fail(state, item)
            elif self._refresh_changed:
                self._ready.append(Task(item, state, self._digest(item.key)))
            else:
                tally.keep(item)
                tally.already += 1
        tally.spend("list", time.perf_counter() - begin + chunk.seconds, len(chunk))

    def _digest(self, key: str) -> bytes | None:
        """Digest of the image that a record was made from; None for a corrupt record, which is thus made anew."""
        try:
            return self._writer.source_digest(key)
        except CorruptRecord as error:
            log.warning("%s", error)
            return None

    def _count(self, task: Task, outcome: Outcome, by: int = 1) -> None:
        tally = self.tally
        tally.retried += by * isinstance(task.before, Failure)
        tally.refreshed += by * (task.refreshes and outcome.changed)
        if by < 0:
            tally.forget(task.item, outcome.failure)
        elif outcome.failure is not None:
            self._fail(outcome.failure, task.item)
        else:
            tally.keep(task.item)
        if outcome.regions is not None:
            tally.new += by * (not task.refreshes)
            tally.regions += by * outcome.regions
        elif outcome.failure is None:
            tally.already += by

    def _fail(self, failure: Failure, item: Item) -> None:
        self.tally.fail(failure, item)
        log.warning("%s: %s (key %s): %s", failure.kind, failure.source, failure.key, failure.message)


def commit_results(
    writer: Writer, tasks: Sequence[Task], results: Sequence[Regions | Failure | None], on_duplicate: str
) -> Committed:
    """Commit the results of tasks, see `Work.commit`."""
    begin = time.perf_counter()
    results = [
        None if task.refreshes and _unread(result) else result for task, result in zip(tasks, results, strict=True)
    ]
    regions = [result for result in results if isinstance(result, Regions)]
    failures = [result for result in results if isinstance(result, Failure)]
    nbytes = writer.write(regions, failures, on_duplicate).nbytes if regions or failures else 0
    states = writer.states([task.item.key for task in tasks])
    outcomes = [_outcome(result, state) for result, state in zip(results, states, strict=True)]
    return Committed(outcomes, nbytes, time.perf_counter() - begin)


def _outcome(result: Regions | Failure | None, state: None | str | Failure) -> Outcome:
    if isinstance(state, Failure):
        return Outcome(state, None, result is not None)
    return Outcome(None, result.num_regions if isinstance(result, Regions) else None, result is not None)


def _unread(result: Regions | Failure | None) -> bool:
    return isinstance(result, Failure) and result.kind in CANNOT_BE_READ
