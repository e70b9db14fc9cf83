"""Where something listens: host and port as they are written, and metrics for Prometheus over HTTP."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import UsageError

LOOPBACK = "127.0.0.1"


def parse_endpoint(text: str, option: str = "--metrics-port", port: int = 9100) -> tuple[str, int]:
    """Host and port of "9100", "0.0.0.0:9100" or "[::]:9100"; only this machine when no host is given.

    Args:
        option, port: for the message: what was given, and what might be.

    Raises: UsageError.
    """
    match = re.fullmatch(r"(?:\[([\da-fA-F:.]+)\]:|([^\s:\[\]]+):)?(\d{1,5})", text.strip())
    if not match or int(match[3]) > 65535:
        raise UsageError(f"{option} {text!r} is not a port: give for instance {port}, 0.0.0.0:{port}, or 0 for any")
    return match[1] or match[2] or LOOPBACK, int(match[3])


def address(host: str, port: int) -> str:
    """As it is written in a URL."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def serve_registry(registry: Any, endpoint: str) -> Iterator[str]:
    """Serve the metrics of a `prometheus_client.CollectorRegistry` over HTTP meanwhile, and say on stderr where.

    Args:
        endpoint: see `parse_endpoint`; port 0 picks a free one.

    Yields: the URL.

    Raises: UsageError: the port is taken or not allowed, or there is no such address here.
    """
    from prometheus_client import start_http_server

    host, port = parse_endpoint(endpoint)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--metrics-port {endpoint}: cannot listen on {host} port {port}: {why}; choose another, or 0"
        ) from None
    url = f"http://{address(host, server.server_port)}/metrics"
    print(f"metrics at {url}", file=sys.stderr)
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
