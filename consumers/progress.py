"""Progress of counted work on stderr: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

JSON_SECONDS = 10.0


class CountProgress:
    """A context manager that is called with (done, in all) and what else there is to show.

    Args:
        what: is being counted, such as "examples".
        quiet: show nothing.
    """

    def __init__(self, what: str, quiet: bool = False):
        self._what, self._quiet = what, quiet
        self._last, self._bar = time.monotonic(), None

    def __enter__(self) -> CountProgress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[facts]}"),
            )  # fmt: skip
            self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            self._task = self._bar.add_task(self._what, total=None, facts="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, total: int, **facts: Any) -> None:
        if self._bar:
            text = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items())
            self._bar.update(self._task, completed=done, total=total, facts=text)
        elif not self._quiet and time.monotonic() - self._last >= JSON_SECONDS:
            self._last = time.monotonic()
            print(json.dumps({self._what: done, "total": total, **facts}), file=sys.stderr, flush=True)
