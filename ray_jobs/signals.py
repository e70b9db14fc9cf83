"""Interruption: the first SIGINT or SIGTERM lets a job finish what is at the model, a second ends it at once.

So does a terminal that closes (SIGHUP), unless nohup is there; what is printed after that goes nowhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType

INTERRUPTED = 130  # exit code


class Drain:
    """Context manager that turns signals into `requested`; outside the main thread it installs nothing.

    The store is its own journal, so ending at once loses only the open transaction.

    Args:
        work: what is finished after the first signal.
        kept: what is whole after the second one.
    """

    def __init__(self, work: str = "images at work", kept: str = "the store is valid") -> None:
        self.requested = False
        self._work, self._kept = work, kept
        self._before: dict[int, object] = {}
        self._terminals: list[int] = []

    def __enter__(self) -> Drain:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
            self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            _tell(f"\nStopped at once; {self._kept}. The same command continues it.\n")
            os._exit(INTERRUPTED)
        self.requested = True
        _tell(f"\nFinishing the {self._work}; interrupt again to stop at once.\n")

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.requested = True  # and never more: the shell and the system may both send it
        for terminal in self._terminals:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, terminal)
            os.close(null)


def _tell(text: str) -> None:
    """Write to stderr, unless its reader is gone: Ctrl-C ends the `tee` of a pipe as well."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())  # not print, which could be interrupted inside the same stream's lock
