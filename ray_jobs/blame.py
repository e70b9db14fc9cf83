"""Units of work on their way through processes that may die: what is redone, who is suspected, what is given up."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from cache import Failure, InfrastructureLost

from .work import Task

MOST_BLAMES = 2
MOST_REQUEUES = 10
SLOWNESS = 20  # times as long as usual is too long


@dataclass(eq=False)
class Unit:
    """Tasks that go through the stages together.

    Attributes:
        blames: how often a process died, or time ran out, over this unit.
        requeues: how often it was redone through no fault of its own.
        suspect: one image that may be what kills processes; it is at a model alone.
    """

    tasks: list[Task]
    blames: int = 0
    requeues: int = 0
    suspect: bool = False

    def __len__(self) -> int:
        return len(self.tasks)


class Retries:
    """Units to do again. A unit that is blamed twice is taken apart, and an image that is blamed twice by itself fails.

    Only what was at work in a process when it died is blamed; what is lost with a machine, a connection or a
    bystander is redone without blame, though not for ever.
    """

    def __init__(self) -> None:
        self.waiting: deque[Unit] = deque()

    def redo(self, unit: Unit, reason: object) -> None:
        """Do a unit again that infrastructure failed. Raises: InfrastructureLost after MOST_REQUEUES times."""
        unit.requeues += 1
        if unit.requeues > MOST_REQUEUES:
            raise InfrastructureLost(
                f"the images from {unit.tasks[0].item.key!r} on were lost {unit.requeues} times, the last time by: "
                f"{reason}. What is committed is kept; see to the cluster, then run the same line again"
            )
        self.waiting.appendleft(unit)

    def blame(self, unit: Unit, kind: str, reason: str) -> Failure | None:
        """Do a unit again that a process died of; the failure of its one image when that is certain to be the cause.

        Args:
            kind: worker_crash or timeout.
            reason: what happened, in a few words.
        """
        unit.blames += 1
        if unit.blames < MOST_BLAMES:
            self.waiting.appendleft(unit)
        elif not unit.suspect:
            self.waiting.extendleft(Unit([task], suspect=True) for task in reversed(unit.tasks))
        else:
            item = unit.tasks[0].item
            message = f"{reason}, {unit.blames} times with this image alone; look at it, then use --retry-failed"
            return Failure(item.key, kind, message, item.source)
        return None


class Patience:
    """How long units may take at one stage: `limit` seconds an image until the usual pace is known.

    From then on a unit has SLOWNESS times its usual time, but at least `limit` and at most what it had before.
    """

    def __init__(self, limit: float):
        self._limit = limit
        self._seconds, self._images = 0.0, 0

    def learn(self, seconds: float, images: int) -> None:
        """Take a unit into account that came through."""
        self._seconds += seconds
        self._images += images

    def of(self, unit: Unit) -> float:
        """Seconds that the unit may take."""
        most = self._limit * len(unit)
        if not self._images:
            return most
        return min(most, max(self._limit, SLOWNESS * len(unit) * self._seconds / self._images))


class Watch:
    """Tells when something has stood still for too long."""

    def __init__(self, limit: float):
        self.limit = limit
        self._since = time.monotonic()

    def moved(self) -> None:
        self._since = time.monotonic()

    @property
    def expired(self) -> bool:
        return time.monotonic() - self._since > self.limit
