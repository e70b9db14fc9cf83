"""Progress on stderr: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from .tally import Tally

JSON_SECONDS, BAR_SECONDS = 10.0, 0.25
LONGEST_BAR = 20


class Progress:
    """Shows a tally while a job runs; a context manager with a thread of its own.

    Args:
        tally: what to show.
        quiet: show nothing.
        stream: where to; a bar if it is a terminal that can move its cursor.
        interval: seconds between JSON lines.
    """

    def __init__(self, tally: Tally, quiet: bool = False, stream: TextIO | None = None, interval: float = JSON_SECONDS):
        self._tally, self._quiet, self._interval = tally, quiet, interval
        self._stream = stream or sys.stderr
        self._ended = threading.Event()
        self._bar = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet:
            if self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
                self._interval = BAR_SECONDS
                self._bar = _make_bar(self._stream)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            if self._bar is None:
                while not self._ended.wait(self._interval):
                    print(json.dumps(self.line()), file=self._stream, flush=True)
            else:
                with self._bar:
                    while not self._ended.wait(self._interval):
                        self._update_bar()
        except (OSError, ValueError):
            pass  # the terminal was closed, or the reader of the pipe has gone: the job goes on

    def line(self) -> dict:
        """The present state, as the JSON line shows it."""
        tally = self._tally
        pace, seconds_left = tally.pace.recent(), self.seconds_left()
        return {
            "seconds": round(tally.pace.elapsed, 1),
            "done": tally.done,
            "listed": tally.listed,
            "listing_complete": tally.complete,
            "new": tally.new,
            "failed": tally.failed,
            "failures": dict(tally.failures),
            "pace": None if pace is None else round(pace, 2),
            "seconds_left": None if seconds_left is None else round(seconds_left),
            "images_per_second": tally.rates(),
            "devices": dict(Counter(tally.devices)),
        }

    def seconds_left(self) -> float | None:
        """Time to the end at the pace of the last minute; None while the end or the pace is unknown."""
        tally = self._tally
        if not tally.complete or not (pace := tally.pace.recent()):
            return None
        return (tally.listed - tally.done) / pace

    def _update_bar(self) -> None:
        state = self.line()
        (task,) = self._bar.task_ids
        width = self._bar.console.width
        width -= _bar_width(width) + 1
        total = state["listed"] if state["listing_complete"] else None
        self._bar.update(task, total=total, completed=state["done"], text=_fitting(_parts(state), width))
        self._bar.refresh()


def _parts(state: dict) -> list[str]:
    """What the bar says, the most important first."""
    parts = [f"{state['done']:,}/{state['listed']:,}{'' if state['listing_complete'] else '+'} images"]
    if state["pace"] is None and not state["devices"]:
        parts.append("starting")
    if state["failed"]:
        parts.append(f"{state['failed']:,} failed")
    if state["pace"]:
        parts.append(f"{state['pace']:.3g}/s" if state["pace"] < 100 else f"{state['pace']:,.0f}/s")
    if (left := state["seconds_left"]) is not None:
        parts.append(f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left")
    if rates := {stage: rate for stage, rate in state["images_per_second"].items() if stage != "list"}:
        parts.append("(" + ", ".join(f"{stage} {rate:g}" for stage, rate in rates.items()) + ")")
    if devices := state["devices"]:
        kinds = Counter()
        for name, count in devices.items():
            kinds[name.partition(":")[0]] += count
        several = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        parts.append("on " + (several if sum(devices.values()) > 1 else next(iter(devices))))
    return parts


def _fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts as fit into a line, the first in any case."""
    text = parts[0]
    for part in parts[1:]:
        if len(text) + 2 + len(part) > width:
            break
        text += f"  {part}"
    return text


def _bar_width(columns: int) -> int:
    return min(LONGEST_BAR, columns // 5)


def _make_bar(stream: TextIO):
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=stream)
    bar = Progress(
        BarColumn(_bar_width(console.width)),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("images", total=None, text="starting")
    return bar
