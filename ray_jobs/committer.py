"""Commits beside the model: a thread that stores one unit while the next is at the model."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from cache import Failure, Regions

from .work import Task, Work

UNITS_WAITING = 2

Results = Sequence[Regions | Failure | None]


class Committer:
    """Commits units in the order they are put. A context manager: a normal end commits what is left.

    What a commit raises is raised by the next `put`, or at the end; nothing is committed after it.
    """

    def __init__(self, work: Work):
        self._work = work
        self._queue: queue.Queue[tuple[Sequence[Task], Results] | None] = queue.Queue(UNITS_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)

    def put(self, tasks: Sequence[Task], results: Results) -> None:
        """Hand a unit over; waits while too many are waiting."""
        self._check()
        self._queue.put((tasks, results))

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._queue.put(None)  # units that were done before an error are kept
        self._thread.join()
        if kind is None:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (unit := self._queue.get()) is not None:
            if self._error is None:
                try:
                    self._work.commit(*unit)
                except BaseException as error:
                    self._error = error
