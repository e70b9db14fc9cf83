"""Every call to a feature server: who makes it, whether it is let in, and what became of it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.flight as flight

from . import wire
from .errors import RoivaultError
from .server_access import EVERYBODY, Access, Tokens
from .server_limits import Gate, Refused
from .wire import InvalidRequest

MIDDLEWARE = "roivault"
OK, CANCELLED, INTERNAL, UNAUTHENTICATED, UNAUTHORIZED = "OK CANCELLED INTERNAL UNAUTHENTICATED UNAUTHORIZED".split()

_log = logging.getLogger("roivault.server")


class Call(flight.ServerMiddleware):
    """One call.

    Attributes:
        method: of Flight, such as DoGet, or of an action "DoAction stats".
        access: what its token is for; None: its token is not known.
        peer: address of the client.
        store: name of the store that was asked for last.
        keys, records, missing, nbytes: what was asked for, and what of it was handed on.
        status: OK, or the word for what went wrong.
        seconds: how long it took.
    """

    def __init__(self, method: str, access: Access | None, gate: Gate, ended: Callable[[Call], object]):
        self.method, self.access = method, access
        self.peer, self.store, self.status = "", None, OK
        self.keys = self.records = self.missing = self.nbytes = 0
        self.seconds, self._began = 0.0, time.monotonic()
        self._gate, self._ended = gate, ended

    @classmethod
    def of(cls, context: flight.ServerCallContext) -> Call:
        call = context.get_middleware(MIDDLEWARE)
        call.peer = context.peer()
        return call

    @property
    def client(self) -> str:
        """Whose pace is counted together."""
        return self.access.name or self.peer.rpartition(":")[0]

    def enter(self) -> None:
        """Raises: FlightUnauthenticatedError, Refused."""
        if self.access is None:
            self.status = UNAUTHENTICATED
            raise flight.FlightUnauthenticatedError("a token is needed that this server knows")
        self._gate.enter(self)

    def rest(self) -> None:
        """Nothing is to be done until `enter`: the server may end."""
        self._gate.rest(self)

    def ask(self, keys: int) -> None:
        """Raises: InvalidRequest, Refused."""
        most = self._gate.limits.keys
        if keys > most:
            raise InvalidRequest(f"a request may have {most} keys, this one has {keys}", wire.TOO_LARGE)
        self.keys += keys
        self._gate.spend(self.client, keys)

    def call_completed(self, exception: BaseException | None) -> None:
        self._gate.leave(self)
        self.seconds = time.monotonic() - self._began
        if exception is not None and self.status == OK:
            self.status = CANCELLED
        self._ended(self)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors as a client is to see them: those that are not Flight's would bring it a traceback."""
        try:
            yield
        except (flight.FlightError, GeneratorExit):
            raise
        except InvalidRequest as error:
            raise self._failed(flight.FlightServerError, str(error), error.code) from None
        except Refused as error:
            raise self._failed(flight.FlightUnavailableError, str(error), error.code) from None
        except RoivaultError as error:
            _log.error("%s", error)
            raise self._failed(flight.FlightServerError, "the server cannot read its store", wire.DATA_LOSS) from None
        except (pa.ArrowException, OSError):
            raise self._failed(flight.FlightCancelledError, "the stream was broken off", CANCELLED) from None
        except Exception:
            _log.exception("a bug in the feature server")
            raise self._failed(flight.FlightInternalError, "a bug; see the server's log", INTERNAL) from None

    def _failed(self, kind: type[flight.FlightError], message: str, code: str) -> flight.FlightError:
        self.status = code
        return kind(message, code.encode())


class Calls(flight.ServerMiddlewareFactory):
    """Makes a `Call` of each call.

    Args:
        tokens: None: everybody may read everything.
        ended: told of each call that has ended.
    """

    def __init__(self, tokens: Tokens | None, gate: Gate, ended: Sequence[Callable[[Call], object]]):
        self._tokens, self._gate, self._told = tokens, gate, ended

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str | bytes]]) -> Call:
        method = "".join(word.capitalize() for word in info.method.name.split("_"))
        return Call(method, self._access(headers), self._gate, self._ended)

    def _access(self, headers: Mapping[str, list[str | bytes]]) -> Access | None:
        if self._tokens is None:
            return EVERYBODY
        given = headers.get(wire.AUTHORIZATION, [])
        if len(given) != 1 or not isinstance(given[0], str) or not given[0].startswith(wire.BEARER):
            return None
        return self._tokens.access(given[0][len(wire.BEARER) :])

    def _ended(self, call: Call) -> None:
        for tell in self._told:
            try:
                tell(call)
            except OSError as error:  # a full disk is no reason to serve no more
                _log.error("a call is not logged: %s", error)


class AccessLog:
    """A JSON line for each call. Neither keys nor tokens are in it."""

    def __init__(self, file: TextIO):
        self._file, self._lock = file, threading.Lock()

    def __call__(self, call: Call) -> None:
        line: dict[str, Any] = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "peer": call.peer,
            "client": call.access and call.access.name,
            "method": call.method,
            "store": call.store,
            "keys": call.keys,
            "records": call.records,
            "missing": call.missing,
            "bytes": call.nbytes,
            "seconds": round(call.seconds, 6),
            "status": call.status,
        }
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
