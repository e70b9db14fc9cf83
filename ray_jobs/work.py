"""What of a listing is still to be done, and the one way of a result into the store."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cache import CorruptRecord, Failure, Regions, StoreWriter

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
            self._commit(tasks, results)

    def _commit(self, tasks: Sequence[Task], results: Sequence[Regions | Failure | None]) -> None:
        begin = time.perf_counter()
        results = [
            None if task.refreshes and _unread(result) else result for task, result in zip(tasks, results, strict=True)
        ]
        regions = [result for result in results if isinstance(result, Regions)]
        failures = [result for result in results if isinstance(result, Failure)]
        if regions or failures:
            on_duplicate = "replace" if self._refresh_changed else "drop"
            self.tally.nbytes += self._writer.write(regions, failures, on_duplicate).nbytes
        states = self._writer.states([task.item.key for task in tasks])
        for task, result, state in zip(tasks, results, states, strict=True):
            self._count(task, result, state)
        self.tally.spend("write", time.perf_counter() - begin, len(tasks))

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

    def _count(self, task: Task, result: Regions | Failure | None, state: str | Failure | None) -> None:
        tally = self.tally
        tally.retried += isinstance(task.before, Failure)
        tally.refreshed += task.refreshes and result is not None
        if isinstance(state, Failure):
            self._fail(state, task.item)
            return
        tally.keep(task.item)
        if isinstance(result, Regions):
            tally.new += not task.refreshes
            tally.regions += result.num_regions
        else:
            tally.already += 1

    def _fail(self, failure: Failure, item: Item) -> None:
        self.tally.fail(failure, item)
        log.warning("%s: %s (key %s): %s", failure.kind, failure.source, failure.key, failure.message)


def _unread(result: Regions | Failure | None) -> bool:
    return isinstance(result, Failure) and result.kind in CANNOT_BE_READ
