"""Progress of counted work on stderr: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cache.progress import Progress


class CountProgress(Progress):
    """Called with (done, in all) and what else there is to show, by name. What is left is judged by the time since the
    first call, so work that goes on where it was interrupted counts for nothing."""

    _first: tuple[int, float] | None = None

    def _columns(self) -> Sequence[Any]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        return (
            TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
        )  # fmt: skip

    def __call__(self, done: int, total: int, **facts: Any) -> None:
        text = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items())
        now = time.monotonic()
        self._first = self._first or (done, now)
        begun, begin = self._first
        left = {"seconds_left": round((total - done) * (now - begin) / (done - begun))} if done > begun else {}
        self._show(done, total, {self._what: done, "total": total, **facts, **left}, text)
