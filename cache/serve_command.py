"""The verb `serve`."""

from __future__ import annotations

import json
import os
import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from . import wire
from .endpoints import LOOPBACK, address, parse_endpoint
from .output import say
from .serve import INTERRUPTED, Ending, ServeOptions, serving
from .server_access import VARIABLE
from .server_limits import Limits

if TYPE_CHECKING:
    from .server import FeatureServer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(serve)


def serve(
    stores: list[str] = typer.Argument(..., metavar="STORE...", help="Stores, shards of one, or quoted patterns."),
    bind: str = typer.Option(
        f"{LOOPBACK}:{wire.PORT}",
        "--bind",
        metavar="[HOST:]PORT",
        help="Where to listen; port 0 takes a free one. An address that other machines reach needs TLS and a token.",
    ),
    tls_cert: Path = typer.Option(None, "--tls-cert", metavar="F", help="Certificate and its chain, PEM."),
    tls_key: Path = typer.Option(None, "--tls-key", metavar="F", help="Its key, PEM."),
    tls_client_ca: Path = typer.Option(
        None, "--tls-client-ca", metavar="F", help="Ask for certificates of clients, signed by one of these."
    ),
    token_file: Path = typer.Option(
        None,
        "--token-file",
        metavar="F",
        help=f"Lines NAME TOKEN [STORE,STORE...], for nobody else to read; or put them into {VARIABLE}.",
    ),
    insecure: bool = typer.Option(False, "--insecure", help="Let whoever reaches the address read all that is served."),
    metrics_port: str = typer.Option(
        None, "--metrics-port", metavar="[HOST:]PORT", help="Metrics for Prometheus; HOST is 127.0.0.1 by default."
    ),
    access_log: str = typer.Option(
        None, "--access-log", metavar="F", help="Append a JSON line for each call to F; - is stderr."
    ),
    max_keys: int = typer.Option(Limits.keys, "--max-keys", min=1, help="Keys of a request."),
    max_request_bytes: int = typer.Option(Limits.request_bytes, "--max-request-bytes", min=64, help="Of a request."),
    max_streams: int = typer.Option(Limits.streams, "--max-streams", min=1, help="Calls that run at a time."),
    max_rate: int = typer.Option(
        Limits.rate, "--max-rate", min=0, help="Keys a second for a token, else for a machine; 0: any number."
    ),
    drain_seconds: float = typer.Option(30.0, "--drain-seconds", min=0, help="How long streams may go on at the end."),
    as_json: bool = typer.Option(False, "--json", help="Print where it listens and what it serves as JSON."),
) -> None:
    """Let trainers on other machines read stores, until Ctrl-C or SIGTERM: what runs may end then; exit code 130.

    Shards that are sealed meanwhile are served too; one that is being written is not. Nothing is written to the stores.
    """
    options = ServeOptions(
        stores=stores,
        bind=bind,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        token_file=token_file,
        insecure=insecure,
        metrics_port=metrics_port,
        access_log=access_log,
        limits=Limits(max_keys, max_request_bytes, max_streams, max_rate),
        drain_seconds=drain_seconds,
    )
    with Ending() as ending, serving(options) as server:
        described = _describe(options, server)
        if as_json:
            print(json.dumps(described), flush=True)
        else:
            _print(described)
        ending.wait()
        print(f"ending: streams that run may go on for {drain_seconds:g} s", file=sys.stderr, flush=True)
        if not server.drain(drain_seconds):
            print("some streams were broken off", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)  # threads of gRPC may not let Python take itself apart


def _describe(options: ServeOptions, server: FeatureServer) -> dict[str, Any]:
    host, _ = parse_endpoint(options.bind, "--bind")
    reached_at = socket.gethostname() if _is_any(host) else host
    scheme = "grpc" if options.tls_cert is None else "grpc+tls"
    return {
        "url": f"{scheme}://{address(reached_at, server.port)}",
        "stores": {name: store.stats() for name, store in server.stores.items()},
        "tokens": server.asks_for_tokens,
        "client_certificates": options.tls_client_ca is not None,
        "pid": os.getpid(),
    }


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _print(described: dict[str, Any]) -> None:
    stores, url = described["stores"], described["url"]
    for name, stats in stores.items():
        shards = f"{stats['shards']:,} sealed shard{'' if stats['shards'] == 1 else 's'}"
        say(f"{name}: {stats['records']:,} records and {stats['failures']:,} failures in {shards}")
    tls = ', tls_ca="CA.pem"' if url.startswith("grpc+tls") else ""
    token = ', token="TOKEN"' if described["tokens"] else ""
    say(f"serving at {url}, until Ctrl-C. In a trainer:")
    for name in stores:
        say(f'  open_store("{url}{f"/{quote(name)}" if len(stores) > 1 else ""}"{token}{tls})')
    sys.stdout.flush()
