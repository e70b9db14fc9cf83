"""Progress of long work on stderr: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

JSON_SECONDS = 10.0
GONE = (OSError, ValueError)  # what writing raises once the reader of a pipe has ended, or a terminal was closed


class Progress:
    """What is the same however the work is measured; a context manager.

    Args:
        what: is being done or counted, such as "published".
        quiet: show nothing.
    """

    def __init__(self, what: str, quiet: bool = False):
        self._what, self._quiet, self._bar = what, quiet, None
        self._begin = self._last = time.monotonic()

    def _columns(self) -> Sequence[Any]:
        """Of the bar. rich is imported only where there is one."""
        raise NotImplementedError

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(*self._columns(), console=Console(file=sys.stderr), transient=True)
            self._task = self._bar.add_task(self._what, total=None, facts="")
            with suppress(*GONE):
                self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            with suppress(*GONE):
                self._bar.stop()

    def tell(self, text: str) -> None:
        """Show a line of text beside the progress, at once."""
        if self._quiet:
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except GONE:
            self._quiet = True  # the work goes on, whoever looks at it

    def _show(self, done: int, total: int | None, line: dict[str, Any], facts: str = "") -> None:
        """`line` is the JSON; `facts` what a bar may show besides."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, facts=facts)
        elif not self._quiet and (now := time.monotonic()) - self._last >= JSON_SECONDS:
            self._last = now
            self.tell(json.dumps(line))


class ByteProgress(Progress):
    """Called with (bytes done, bytes in all); None while nobody knows how many there will be."""

    def _columns(self) -> Sequence[Any]:
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

        return BarColumn(20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()

    def __call__(self, done: int, total: int | None) -> None:
        self._show(done, total, {f"{self._what}_bytes": done, "total_bytes": total})


class Counting(Progress):
    """Called after each image or record, or with how many more are done.

    Args:
        total: how many there will be; None while nobody knows.
        what: they are.
    """

    def __init__(self, total: int | None = None, quiet: bool = False, what: str = "images"):
        super().__init__(what, quiet)
        self.done, self.total = 0, total

    def _columns(self) -> Sequence[Any]:
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

        return BarColumn(20), MofNCompleteColumn(), self._what, TimeRemainingColumn()

    def __call__(self, more: int = 1) -> None:
        self.done += more
        seconds = round(time.monotonic() - self._begin, 1)
        self._show(self.done, self.total, {"seconds": seconds, self._what: self.done, "of": self.total})
