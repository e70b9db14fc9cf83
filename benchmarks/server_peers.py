"""Other ways to hand region features to trainers over a network, for `server.py`: each serves what it holds in memory.

    flight gather   Arrow Flight, all images of a batch in one record batch: two columns of bytes, joined by the server
    http            one request a batch; the bytes of all images one after the other, through aiohttp
    redis           one MGET a batch, from a redis server

All hold features as float16, and cast to float32 where the batch is made, as ours does.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cache_layouts import Reader, Records  # noqa: E402


def packed(records: Records) -> dict[str, bytes]:
    """Boxes, then features as float16, of each key."""
    return {key: boxes.tobytes() + features.astype(np.float16).tobytes() for key, (features, boxes) in records.items()}


def unpack(data: memoryview, row: int, features: torch.Tensor, boxes: torch.Tensor) -> None:
    count = boxes[row].numel()
    boxes[row].copy_(torch.from_numpy(np.frombuffer(data, np.float32, count)).view(boxes[row].shape))
    values = torch.from_numpy(np.frombuffer(data, np.float16, features[row].numel(), 4 * count))
    features[row].copy_(values.view(features[row].shape))


def in_process(serve: Callable[..., None], *arguments: Any) -> Any:
    """Start a server: `serve` is given a queue to put its port on."""
    context = get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=serve, args=(queue, *arguments), daemon=True)
    process.start()
    return queue.get(timeout=120)


# -- Flight gather


def serve_flight(queue: Any, make: Callable[[], Records]) -> None:
    import pyarrow as pa
    import pyarrow.flight as flight

    records = make()
    names = list(records)
    places = {key: place for place, key in enumerate(names)}
    features = np.stack([records[key][0] for key in names]).astype(np.float16)
    boxes = np.stack([records[key][1] for key in names])
    schema = pa.schema([("features", pa.large_binary()), ("boxes", pa.large_binary())])

    class Gather(flight.FlightServerBase):
        def do_get(self, context: Any, ticket: Any) -> Any:
            chosen = [places[key] for key in json.loads(ticket.ticket)]
            columns = [self.joined(array[chosen]) for array in (features, boxes)]
            return flight.RecordBatchStream(pa.Table.from_batches([pa.record_batch(columns, schema)]))

        @staticmethod
        def joined(array: np.ndarray) -> Any:
            offsets = pa.py_buffer(np.array([0, array.nbytes], np.int64))
            return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(array)])

    server = Gather("grpc://127.0.0.1:0")
    queue.put(server.port)
    server.serve()


def flight_gather(port: int) -> Reader:
    import pyarrow.flight as flight

    client = flight.connect(f"grpc://127.0.0.1:{port}")

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        batch = client.do_get(flight.Ticket(json.dumps(list(keys)).encode())).read_chunk().data
        for column, target, dtype in ((0, features, np.float16), (1, boxes, np.float32)):
            values = np.frombuffer(batch.column(column)[0].as_buffer(), dtype)
            target[: len(keys)].copy_(torch.from_numpy(values).view(len(keys), *target.shape[1:]))

    return read


# -- HTTP


def serve_http(queue: Any, make: Callable[[], Records]) -> None:
    from aiohttp import web

    held = packed(make())

    async def answer(request: Any) -> Any:
        return web.Response(body=b"".join([held[key] for key in await request.json()]))

    async def main() -> None:
        application = web.Application(client_max_size=1 << 24)
        application.router.add_post("/", answer)
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=3600)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        queue.put(site._server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


def http(port: int) -> Reader:
    connection = HTTPConnection("127.0.0.1", port)

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        connection.request("POST", "/", json.dumps(list(keys)))
        response = connection.getresponse()
        body = memoryview(bytearray(int(response.headers["Content-Length"])))
        done = 0
        while done < len(body):
            done += response.readinto(body[done:])
        response.read()
        length = len(body) // len(keys)
        for row in range(len(keys)):
            unpack(body[row * length : (row + 1) * length], row, features, boxes)

    return read


# -- redis


def redis_server(records: Records, folder: Path) -> str | None:
    """The socket of a server with the records in it; None where redis is not installed."""
    if shutil.which("redis-server") is None:
        return None
    try:
        import redis
    except ImportError:
        return None
    socket = str(folder / "redis.sock")
    line = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
    subprocess.Popen([*line, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=socket)
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    for key, value in packed(records).items():
        client.set(key, value)
    return socket


def redis_mget(socket: str) -> Reader:
    import redis

    client = redis.Redis(unix_socket_path=socket)

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, value in enumerate(client.mget(list(keys))):
            unpack(memoryview(value), row, features, boxes)

    return read
