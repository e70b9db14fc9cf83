"""Connections to feature servers: a process has one for each store object.

gRPC does not survive a fork: not its channels, and nothing that is made anew in the child either, as long as it was in
use in the parent. So a fork waits for the calls in progress and closes all connections, until the threads of gRPC have
ended; both processes connect again when they next ask for something.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, TypeVar

from .errors import InfrastructureLost

_TASKS = Path("/proc/self/task")
_GRPC = ("grpc_global_tim", "event_engine", "lifeguard", "grpc_shutdown")  # names of its threads
_ENDING = 1.0  # seconds that these get to end
_DOUBT = 90.0  # and what a process may have inherited gets to answer
_PATIENCE = 70.0  # and calls in progress, which have deadlines of their own

T = TypeVar("T")


class Connection:
    """Makes a client when it is first needed, in this process and since its last fork.

    Args:
        connect: makes one.
    """

    def __init__(self, connect: Callable[[], Any]):
        self._connect = connect
        self._client: Any = None
        self._making = threading.Lock()
        _connections.add(weakref.ref(self, _connections.discard))

    def call(self, act: Callable[[Any], T]) -> T:
        """What `act` makes of the client; it must keep neither that nor a stream of it. Forks wait until it is done."""
        with _calls:
            with self._making:
                if self._client is None:
                    self._client = self._connect()
            try:
                return _watched(lambda: act(self._client)) if _calls.doubtful else act(self._client)
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # they would keep the client
                raise

    def close(self) -> None:
        """Also forgets what a failed connection has learnt: the next call connects at once."""
        self._client = None

    def renew(self) -> None:
        """In a child: no thread of its parent will ever open the lock."""
        self._making = threading.Lock()


class _Calls:
    """Those in progress in this process, which forks must not interrupt.

    Args:
        doubtful: gRPC was in use when this process was forked, by somebody else; it may never answer.
    """

    def __init__(self, doubtful: bool = False) -> None:
        self.doubtful = doubtful
        self.in_use = False  # as far as a child is concerned
        self._changed = threading.Condition()
        self._own = threading.local()
        self._count = 0
        self._forking = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._count += 1
        self._own.count = getattr(self._own, "count", 0) + 1

    def __exit__(self, *_: object) -> None:
        self._own.count -= 1
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def before_fork(self) -> None:
        own = getattr(self._own, "count", 0)  # a call of this very thread cannot be waited for
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._forking = True
            self._changed.wait_for(lambda: self._count <= own, _PATIENCE)
        used = [connection for connection in _alive() if connection._client is not None]
        for connection in used:
            connection.close()
        if used:
            _await_end_of_grpc()
        self.in_use = bool(_connections) and _grpc_runs()

    def after_fork(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()


def _alive() -> list[Connection]:
    return [connection for known in list(_connections) if (connection := known()) is not None]


def _watched(act: Callable[[], T]) -> T:
    """The first call of a process that may have inherited a gRPC without its threads."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = outcome.result(_DOUBT)
    except FutureTimeout:
        raise InfrastructureLost(
            "gRPC does not answer in this process: it was forked from one where something else uses gRPC too; start it "
            'by "spawn" or "forkserver"'
        ) from None
    _calls.doubtful = False
    return result


def _await_end_of_grpc() -> None:
    begin, collected = time.monotonic(), False
    while _grpc_runs():
        waited = time.monotonic() - begin
        if waited > _ENDING:
            break  # another library may use it too
        if waited > _ENDING / 5 and not collected:
            gc.collect()  # what nobody can reach any more may hold a client or a server
            collected = True
        time.sleep(0.001)


def _grpc_runs() -> bool:
    return _TASKS.is_dir() and any(_name(task) in _GRPC for task in _TASKS.iterdir())


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text("ascii", "replace").strip()
    except OSError:
        return ""  # it has ended


def _after_fork_in_child() -> None:
    global _calls
    _calls = _Calls(doubtful=_calls.in_use)
    for connection in _alive():
        connection.renew()


_connections: set[weakref.ref[Connection]] = set()
_calls = _Calls()
os.register_at_fork(
    before=lambda: _calls.before_fork(),
    after_in_parent=lambda: _calls.after_fork(),
    after_in_child=_after_fork_in_child,
)
