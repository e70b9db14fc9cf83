"""Speaks the protocol of `cache/wire.py` to a feature server, as plainly as Flight allows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from cache.serve import ServeOptions, serving
from cache.wire import RECORDS, Note, encode_request

TIMEOUT = flight.FlightCallOptions(timeout=60)


class Asker:
    """A client of a server."""

    def __init__(self, url: str, token: str | None = None, **options: Any):
        self.url = url
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self.call = flight.FlightCallOptions(timeout=60, headers=headers)
        self.client = flight.FlightClient(url, **options)

    def raw(self, ticket: bytes) -> list[tuple[bytes | None, bytes | None]]:
        """(record, metadata) of each batch that a ticket brings."""
        return [answer(chunk) for chunk in self.client.do_get(flight.Ticket(ticket), self.call)]

    def get(self, keys: Sequence[str], store: str | None = None) -> list[bytes | Note]:
        return list(map(plain, self.raw(encode_request(store=store, keys=list(keys)))))

    def places(self, places: Sequence[Sequence[int]], store: str | None = None) -> list[bytes | Note]:
        return list(map(plain, self.raw(encode_request(store=store, places=places))))

    def bytes(self, action: str, **fields: Any) -> bytes:
        body = encode_request(**fields) if fields else b""
        return b"".join(one.body.to_pybytes() for one in self.client.do_action(flight.Action(action, body), self.call))

    def ask(self, action: str, **fields: Any) -> Any:
        return json.loads(self.bytes(action, **fields))

    def pages(self, action: str, limit: int, store: str | None = None) -> Iterator[list[Any]]:
        after, end = None, False
        while not end:
            page = self.ask(action, store=store, after=after, limit=limit)
            after, end = page["after"], page["after"] is None
            yield page[action]

    def exchange(self, requests: Sequence[bytes]) -> list[tuple[bytes | None, bytes | None]]:
        """What comes back when all requests are sent before anything is read."""
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(b""), self.call)
        with writer:
            for request in requests:
                writer.write_metadata(request)
            writer.done_writing()
            return list(map(answer, chunks(reader)))

    def info(self, keys: Sequence[str], store: str | None = None) -> flight.FlightInfo:
        command = encode_request(**dict(zip(RECORDS, (store, list(keys)), strict=True)))
        return self.client.get_flight_info(flight.FlightDescriptor.for_command(command), self.call)


def chunks(reader: flight.FlightStreamReader) -> Iterator[flight.FlightStreamChunk]:
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return


def answer(chunk: flight.FlightStreamChunk) -> tuple[bytes | None, bytes | None]:
    metadata = chunk.app_metadata and chunk.app_metadata.to_pybytes()
    return (None if chunk.data is None else record_in(chunk.data)), metadata


def record_in(batch: pa.RecordBatch) -> bytes | None:
    assert batch.num_rows == 1
    return batch.column(0)[0].as_py()


def plain(one: tuple[bytes | None, bytes | None]) -> bytes | Note:
    record, metadata = one
    assert (record is None) != (metadata is None)
    return Note.decode(metadata) if record is None else record


@contextmanager
def asked(*stores: Any, token: str | None = None, **options: Any) -> Iterator[Asker]:
    """A client of a server of stores in this process; `options` are those of `ServeOptions`."""
    with serving(ServeOptions(list(map(str, stores)), **{"bind": "0", **options})) as server:
        asker = Asker(f"grpc://127.0.0.1:{server.port}", token)
        asker.server = server
        try:
            yield asker
        finally:
            asker.client.close()


@contextmanager
def in_a_process(*arguments: Any, **options: Any) -> Iterator[tuple[subprocess.Popen, dict[str, Any]]]:
    """`roivault serve` as a process of its own, and what it prints with --json."""
    line = [sys.executable, "-m", "roivault", "serve", *map(str, arguments), "--bind", "0", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            first = process.stdout.readline()
            assert first, process.stderr.read()
            yield process, json.loads(first)
        finally:
            process.kill()


def until(reached: Callable[[], bool], seconds: float = 20.0) -> None:
    """Calls end a moment after their clients have all they asked for."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)
