"""A limit on the memory that decoded images take while they wait for the model."""

from __future__ import annotations

import threading

BUDGET_BYTES = 1 << 30


class ByteBudget:
    """Grants bytes in the order of their tickets, so that the image the model waits for is never behind a later one.

    An image that needs more than the whole budget is let in alone. Tickets are 0, 1, 2, ...; every ticket must take
    its turn, with 0 bytes if it turns out to need none.
    """

    def __init__(self, limit: int = BUDGET_BYTES):
        self.limit = limit
        self._used = 0
        self._turn = 0
        self._waiting = False
        self._closed = False
        self._change = threading.Condition()

    @property
    def exhausted(self) -> bool:
        """Whether the next image waits until others have left."""
        return self._waiting

    def acquire(self, ticket: int, nbytes: int) -> bool:
        """Wait for the turn of `ticket` and for `nbytes`; False if the budget was closed meanwhile."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._turn == ticket)
            self._waiting = not self._fits(nbytes)
            self._change.wait_for(lambda: self._closed or self._fits(nbytes))
            self._waiting = False
            self._turn += 1
            self._used += nbytes
            self._change.notify_all()
            return not self._closed

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._change:
            self._used -= nbytes
            self._change.notify_all()

    def close(self) -> None:
        """Wake everybody who waits; nothing is granted any more."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _fits(self, nbytes: int) -> bool:
        return self._used == 0 or self._used + nbytes <= self.limit
