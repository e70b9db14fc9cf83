"""How much a feature server does at a time, and for one client; and which calls run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import wire
from .errors import require_whole

_LOOK_SECONDS = 1.0
_CLIENTS = 10_000  # whose pace is remembered; more than these begin anew


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        keys: of a request.
        request_bytes: of a request.
        streams: calls that run at a time.
        rate: keys a second of one client, that is of a token, else of a machine; 0: any.

    Raises: UsageError.
    """

    keys: int = wire.MAX_KEYS
    request_bytes: int = wire.MAX_REQUEST_BYTES
    streams: int = 256
    rate: int = 0

    def __post_init__(self) -> None:
        for name, least in (("keys", 1), ("request_bytes", 64), ("streams", 1), ("rate", 0)):
            require_whole(name, getattr(self, name), least)


class Refused(Exception):
    """A call that may be tried again later; `code` is RESOURCE_EXHAUSTED or DRAINING."""

    def __init__(self, message: str, code: str = wire.RESOURCE_EXHAUSTED):
        super().__init__(message)
        self.code = code


class Gate:
    """Lets calls in, up to the limits, until it is closed.

    Attributes:
        limits: what they are.
        closed: nothing is let in any more, and calls that rest may not go on.
    """

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic):
        self.limits, self.closed = limits, False
        self._now, self._changed = now, threading.Condition()
        self._busy: dict[object, bool] = {}  # the calls that are in
        self._left: dict[str, tuple[float, float]] = {}  # client -> keys it may still ask for, and when that was so

    def __len__(self) -> int:
        """Number of calls that are in."""
        return len(self._busy)

    def enter(self, call: object) -> None:
        """Let a call in, or go on. Raises: Refused."""
        with self._changed:
            if self.closed:
                raise Refused("the server is ending; ask another, or this one in a while", wire.DRAINING)
            if call not in self._busy and len(self._busy) >= self.limits.streams:
                raise Refused(f"{self.limits.streams} streams, the limit of the server, are running; try again")
            self._busy[call] = True

    def rest(self, call: object) -> None:
        """A call that is in has nothing to do until it enters again."""
        with self._changed:
            self._busy[call] = False
            self._changed.notify_all()

    def leave(self, call: object) -> None:
        """A call has ended; one that was not let in may leave too."""
        with self._changed:
            self._busy.pop(call, None)
            self._changed.notify_all()

    def spend(self, client: str, keys: int) -> None:
        """Count keys that a client asks for. Raises: Refused: it asks for more than `rate` a second."""
        rate = self.limits.rate
        if not rate:
            return
        most = float(max(rate, self.limits.keys))
        with self._changed:
            now = self._now()
            left, since = self._left.pop(client, (most, now))
            left = min(most, left + (now - since) * rate)
            self._left[client] = (left - keys if left >= keys else left), now
            if len(self._left) > _CLIENTS:
                del self._left[next(iter(self._left))]
        if left < keys:
            raise Refused(
                f"{rate} keys a second, the limit for a client, are used up; try again in {(keys - left) / rate:.1f} s"
            )

    def close(self) -> None:
        """Let nothing in any more."""
        with self._changed:
            self.closed = True

    def wait(self, seconds: float) -> bool:
        """Until no call has anything to do; whether that came to be in this time."""
        end = time.monotonic() + seconds
        with self._changed:
            while any(self._busy.values()):
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK_SECONDS))  # and runs handlers of signals
            return True
