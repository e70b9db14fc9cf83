"""Progress on stderr: a bar on a terminal, one JSON line every ten seconds anywhere else."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TextIO

from .tally import Tally

JSON_SECONDS = 10.0


class Progress:
    """Shows a tally while a job runs; a context manager with a thread of its own.

    Args:
        tally: what to show.
        quiet: show nothing.
        stream: where to; a bar if it is a terminal.
    """

    def __init__(self, tally: Tally, quiet: bool = False, stream: TextIO | None = None, interval: float = JSON_SECONDS):
        self._tally, self._quiet, self._interval = tally, quiet, interval
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._bar = None
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet:
            if self._stream.isatty():
                self._interval = 0.25
                self._bar = self._make_bar()
                self._bar.start()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._bar:
            self._update_bar()
            self._bar.stop()

    def _tick(self) -> None:
        while not self._ended.wait(self._interval):
            if self._bar:
                self._update_bar()
            else:
                print(json.dumps(self.line()), file=self._stream, flush=True)

    def line(self) -> dict:
        """The present state, as the JSON line shows it."""
        tally, elapsed = self._tally, time.monotonic() - self._begin
        seconds_left = self.seconds_left(elapsed)
        return {
            "seconds": round(elapsed, 1),
            "done": tally.done,
            "listed": tally.listed,
            "listing_complete": tally.complete,
            "new": tally.new,
            "failed": tally.failed,
            "images_per_second": tally.rates(),
            "seconds_left": None if seconds_left is None else round(seconds_left),
        }

    def seconds_left(self, elapsed: float) -> float | None:
        """Time to the end at the pace so far; None while the end or the pace is unknown."""
        tally = self._tally
        if not tally.complete or not tally.images["write"]:
            return None
        return (tally.listed - tally.done) * elapsed / tally.images["write"]

    def _make_bar(self):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            BarColumn(20),
            TextColumn("{task.fields[text]}"),
            console=Console(file=self._stream),
            transient=True,
        )
        self._task = bar.add_task("images", total=None, text="starting")
        return bar

    def _update_bar(self) -> None:
        state = self.line()
        text = f"{state['done']:,}/{state['listed']:,}{'' if state['listing_complete'] else '+'} images"
        if pace := self._tally.images["write"] / max(state["seconds"], 0.1):
            text += f"  {pace:.1f}/s"
        if (left := state["seconds_left"]) is not None:
            text += f"  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
        if state["failed"]:
            text += f"  {state['failed']:,} failed"
        if rates := state["images_per_second"]:
            text += "  (" + ", ".join(f"{stage} {rate:g}" for stage, rate in rates.items() if stage != "list") + ")"
        self._bar.update(self._task, total=self._tally.listed or None, completed=state["done"], text=text)
