"""Progress in bytes on stderr: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import json
import sys
import time

JSON_SECONDS = 10.0


class ByteProgress:
    """A context manager that is called with (bytes done, bytes in all).

    Args:
        what: is being done, such as "published".
        quiet: show nothing.
    """

    def __init__(self, what: str, quiet: bool = False):
        self._what, self._quiet = what, quiet
        self._last, self._bar = time.monotonic(), None

    def __enter__(self) -> ByteProgress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            columns = (BarColumn(20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            self._task = self._bar.add_task(self._what, total=None)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)
        elif not self._quiet and time.monotonic() - self._last >= JSON_SECONDS:
            self._last = time.monotonic()
            print(json.dumps({f"{self._what}_bytes": done, "total_bytes": total}), file=sys.stderr, flush=True)
