"""How fast a job goes: lately, for the time left, and over its whole run, for the chart of its report."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

RECENT_SECONDS = 60.0
FEWEST_COMMITS = 5  # that the recent pace is taken from, however long ago they were
MOST_SPANS = 120


def merge_pairs(spans: list[int]) -> list[int]:
    """The same counts in spans of double the length."""
    return [sum(spans[i : i + 2]) for i in range(0, len(spans), 2)]


class Pace:
    """Counts images as they are committed, in memory that does not depend on how many there are or how long it takes.

    Images that the store had already are none of them, so a resumed job shows its own pace.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._begin = clock, clock()
        self._lock = threading.Lock()
        self._commits: deque[tuple[float, int]] = deque()  # (when, images), those of one second as one
        self._spans, self._width = [0], 1.0

    @property
    def elapsed(self) -> float:
        """Seconds since the job began."""
        return self._clock() - self._begin

    def add(self, images: int) -> None:
        """Count a commit."""
        with self._lock:
            now = self.elapsed
            same_second = len(self._commits) > 1 and int(self._commits[-1][0]) == int(now)
            before = self._commits.pop()[1] if same_second else 0
            self._commits.append((now, before + images))
            while len(self._commits) > FEWEST_COMMITS and self._commits[0][0] < now - RECENT_SECONDS:
                self._commits.popleft()
            while now >= self._width * MOST_SPANS:
                self._spans = merge_pairs(self._spans)
                self._width *= 2
            span = int(now / self._width)
            self._spans += [0] * (span + 1 - len(self._spans))
            self._spans[span] += images

    def recent(self) -> float | None:
        """Images per second over the last minute; None before the first commit.

        It is steady between commits, while a job that stands still for longer than one takes slows down.
        """
        with self._lock:
            if not self._commits:
                return None
            (first, images), *later = self._commits
            if later:
                images, spent = sum(images for _, images in later), later[-1][0] - first
            else:  # the only one: it took all the time there was
                spent = first
            idle = self.elapsed - self._commits[-1][0]
            return images / max(spent + max(0.0, idle - spent / max(1, len(later))), 1e-3)

    def history(self) -> tuple[float, list[int]]:
        """Seconds a span, and the images committed in each span since the job began, at most MOST_SPANS of them."""
        with self._lock:
            return self._width, list(self._spans)
