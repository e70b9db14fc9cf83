"""Running a feature server until it is told to end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import wire
from .endpoints import LOOPBACK, address, parse_endpoint, serve_registry
from .errors import DiskError, InputNotFound, UsageError
from .server_access import check_exposure, read_tokens
from .server_limits import Limits
from .server_stores import served_stores

if TYPE_CHECKING:
    from .server import FeatureServer

INTERRUPTED = 130  # exit code
SIGNAL_SECONDS = 1.0  # between looks for signals
KEEPALIVE_SECONDS = 60  # after so long without a word the other side is asked whether it is there
DEAD_SECONDS = 300  # and after so long without an answer it is taken for dead


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, to whom. Checked before anything is opened.

    Attributes:
        stores: paths of stores, of shards of one, or patterns; each store is served under its name without .roi.
        bind: host and port; port 0 takes a free one.
        tls_cert, tls_key: PEM files of the certificate, with its chain, and its key.
        tls_client_ca: PEM file; clients must show a certificate signed by one of these.
        token_file: see `server_access`; None: the environment is looked at.
        insecure: let whoever reaches the address read all.
        metrics_port: see `endpoints.parse_endpoint`; None: none.
        access_log: file to append a JSON line for each call to; "-" is stderr.
        limits: of requests.
        drain_seconds: so long running streams may go on once the server is told to end.

    Raises: UsageError.
    """

    stores: Sequence[str]
    bind: str = f"{LOOPBACK}:{wire.PORT}"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    token_file: Path | None = None
    insecure: bool = False
    metrics_port: str | None = None
    access_log: str | None = None
    limits: Limits = field(default_factory=Limits)
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        parse_endpoint(self.bind, "--bind", wire.PORT)
        if self.metrics_port is not None:
            parse_endpoint(self.metrics_port)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key belong together: give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise UsageError("--tls-client-ca is for a server with --tls-cert and --tls-key")
        if not 0 <= self.drain_seconds < 1e9:
            raise UsageError(f"--drain-seconds {self.drain_seconds} is to be at least 0")


@contextmanager
def serving(options: ServeOptions) -> Iterator[FeatureServer]:
    """A feature server, its metrics and its access log. Leave it drained: what runs at the end is broken off.

    Raises:
        UsageError: the options do not fit together, or nothing can listen there.
        InputNotFound, StoreDamaged, DiskError
    """
    tokens = read_tokens(options.token_file)
    host, port = parse_endpoint(options.bind, "--bind", wire.PORT)
    tls = _tls(options)
    check_exposure(host, bool(tls), tokens, options.insecure)
    stores = served_stores(options.stores)
    if tokens is not None:
        tokens.refuse_unknown(stores)
    _check_free(host, port)

    from .server import FeatureServer
    from .server_calls import AccessLog

    with ExitStack() as stack:
        ended: list[Callable[..., object]] = []
        if options.access_log is not None:
            ended.append(AccessLog(stack.enter_context(_appended(options.access_log))))
        metrics = None
        if options.metrics_port is not None:
            from .server_metrics import ServerMetrics

            metrics = ServerMetrics()
            ended.append(metrics)
        location = f"grpc{'+tls' if tls else ''}://{address(host, port)}"
        server = FeatureServer(location, stores, tokens, options.limits, ended, **tls)
        stack.callback(server.drain, 0)
        _end_dead_connections(server.port)
        if metrics is not None:
            metrics.watch(stores, server.gate)
            stack.enter_context(serve_registry(metrics.registry, options.metrics_port))
        yield server


def _tls(options: ServeOptions) -> dict[str, Any]:
    """Options of FlightServerBase; none without TLS. Raises: InputNotFound, UsageError."""
    if options.tls_cert is None:
        return {}
    files = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key, "--tls-client-ca": options.tls_client_ca}
    contents = {option: _read(option, path) for option, path in files.items() if path is not None}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key, lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{options.tls_cert} and {options.tls_key} are no certificate and its key: {error}") from None
    tls = {"tls_certificates": [(contents["--tls-cert"], contents["--tls-key"])]}
    if options.tls_client_ca is not None:
        try:
            context.load_verify_locations(options.tls_client_ca)
        except ssl.SSLError as error:
            raise UsageError(f"--tls-client-ca {options.tls_client_ca} holds no certificates: {error}") from None
        tls |= {"verify_client": True, "root_certificates": contents["--tls-client-ca"]}
    return tls


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputNotFound(f"{option} {path} cannot be read: {error.strerror}") from None


def _appended(path: str) -> Any:
    if path == "-":
        return nullcontext(sys.stderr)
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise DiskError(f"--access-log {path} cannot be written: {error.strerror}") from error


def _check_free(host: str, port: int) -> None:
    """gRPC shares a port that another server listens at, and either would get some of the calls. Raises: UsageError."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--bind {address(host, port)}: cannot listen there: {why}; choose another address or port, or port 0"
        ) from None


def _end_dead_connections(port: int) -> None:
    """Let the system find out clients that have gone without a word. Connections take this over from their listener."""
    if not hasattr(socket, "TCP_USER_TIMEOUT") or not os.path.isdir("/proc/self/fd"):
        return
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[1] == port:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * DEAD_SECONDS)


class Ending:
    """While it is entered, the first SIGINT or SIGTERM sets `asked`; a second ends the process at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __enter__(self) -> Ending:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self) -> None:
        """Until `asked`."""
        while not self.asked.wait(SIGNAL_SECONDS):
            pass  # a signal that another thread took is seen when this one runs

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(INTERRUPTED)
        self.asked.set()
