"""Progress of work that goes image by image: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import json
import sys
import time

JSON_SECONDS = 10.0


class Counting:
    """A context manager that is called after each image.

    Args:
        total: how many there will be; None while nobody knows.
        quiet: show nothing.
    """

    def __init__(self, total: int | None = None, quiet: bool = False):
        self.done, self.total = 0, total
        self._quiet, self._bar = quiet, None
        self._begin = self._last = time.monotonic()

    def __enter__(self) -> Counting:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = (BarColumn(20), MofNCompleteColumn(), "images", TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("", total=self.total)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self) -> None:
        self.done += 1
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=self.done)
        elif not self._quiet and (now := time.monotonic()) - self._last >= JSON_SECONDS:
            self._last = now
            line = {"seconds": round(now - self._begin, 1), "images": self.done, "of": self.total}
            print(json.dumps(line), file=sys.stderr, flush=True)
