"""What does it cost to read a store from a feature server? Ours beside other servers, and beside local reads.

    python benchmarks/server.py [--records 600] [--turns 25] [--seconds 0.3] [--dir DIR] [--json]

Everything is on this machine and in its memory: servers and clients share its cores, and no network is between them. In
a turn every alternative is measured once, in random order, for batches of 64 and of 1 and with 1 and 4 clients, each a
process of its own: all read random batches of images, 36 regions of 2048 features, into one reused float32 tensor, for
the given time. So each turn gives ratios to the local read under the same load; the table has their medians. Latencies
are those of all batches. `roivault, ahead` asks for the next batch before it waits for the present one.

`volta` is the LMDB of the VOLTA code base, read locally (see `cache_layouts.py`); the other servers are in
`server_peers.py`. What is not installed is said to be so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from cache_layouts import Reader, volta  # noqa: E402
from cache_read import BATCH, D, N, make_records, write_store  # noqa: E402
from server_peers import (  # noqa: E402
    flight_gather,
    http,
    in_process,
    redis_mget,
    redis_server,
    serve_flight,
    serve_http,
)

from cache.collate import Collation  # noqa: E402
from cache.dataset import RegionBatch, RegionDataset  # noqa: E402

CLIENTS = 4
LOCAL, OURS = "local roivault f32", "roivault f16"
GATES = (  # batch, clients, alternative, compared with, least ratio, aim
    (BATCH, 1, OURS, LOCAL, 0.18, 0.25),
    (BATCH, CLIENTS, OURS, LOCAL, 0.22, 0.30),
    (BATCH, 1, OURS, "local volta", 6.0, 6.0),
)
Ahead = Callable[[Sequence[str]], None]


def roivault(target: str | Path, keys: Sequence[str]) -> tuple[Reader, Ahead]:
    """What `RegionLoader` does, and how it is told of the next batch."""
    dataset, places, collate = RegionDataset(target, keys), {key: i for i, key in enumerate(keys)}, Collation()
    batches: dict[tuple[int, int], RegionBatch] = {}

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        count, memory = len(keys), features.data_ptr()
        out = batches.get((count, memory))
        if out is None:
            out = collate(dataset.boxes_and_features(range(count)))
            out = RegionBatch(features[:count], out.mask, boxes[:count], out.locations, out.num_regions, [])
        batches[count, memory] = collate(dataset.boxes_and_features([places[key] for key in keys]), out)

    return read, lambda keys: dataset.prefetch([places[key] for key in keys])


def client(pipe: Connection, makers: dict[str, Callable[[], tuple[Reader, Ahead | None]]], keys: list[str]) -> None:
    """Reads when it is told to: (name, images in a batch, seconds, seed) -> seconds of each batch."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
    readers = {name: make() for name, make in makers.items()}
    features, boxes = torch.zeros(BATCH, N, D), torch.zeros(BATCH, N, 4)
    expected = torch.zeros(BATCH, N, D), torch.zeros(BATCH, N, 4)
    for start in range(0, len(keys), BATCH):
        chosen = (keys + keys)[start : start + BATCH]
        readers[LOCAL][0](chosen, *expected)
        for name, (read, _) in readers.items():
            features.zero_(), boxes.zero_()
            read(chosen, features, boxes)
            assert torch.allclose(features, expected[0], atol=0.01), name
            assert torch.equal(boxes, expected[1]), name
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        name, count, seconds, seed = order
        (read, ahead), rng, times = readers[name], random.Random(seed), []
        following = rng.sample(keys, count)
        begin = end = time.perf_counter()
        while end - begin < seconds:
            chosen, following = following, rng.sample(keys, count)
            if ahead:
                ahead(following)
            read(chosen, features, boxes)
            now = time.perf_counter()
            times.append(now - end)
            end = now
        pipe.send(times)


def measure(pipes: Sequence[Connection], names: Sequence[str], turns: int, seconds: float) -> dict[tuple, list]:
    """(name, batch, clients) -> of each turn (records per second, seconds of each batch)."""
    rng, found = random.Random(0), {}
    cases = [(name, batch, count) for name in names for batch in (BATCH, 1) for count in (1, len(pipes))]
    for turn in range(turns):
        for case in rng.sample(cases, len(cases)):
            name, batch, count = case
            for number, pipe in enumerate(pipes[:count]):
                pipe.send((name, batch, seconds, turn * 100 + number))
            times = [pipe.recv() for pipe in pipes[:count]]
            rate = sum(batch * len(own) / sum(own) for own in times)
            found.setdefault(case, []).append((rate, [one for own in times for one in own]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each alternative in each turn")
    parser.add_argument("--dir", help="where the files are made, and removed; default the temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.records = max(options.records, BATCH)
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder, records = Path(name), make_records(options.records)
        keys = list(records)
        full, half = (write_store(folder, records, dtype) for dtype in ("float32", "float16"))
        read_volta = volta(folder, records)
        redis = redis_server(records, folder)
        del records
        line = [sys.executable, "-m", "roivault", "serve", str(half), "--bind", "0", "--max-rate", "0", "--json"]
        with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            url = json.loads(server.stdout.readline())["url"]
            make = partial(make_records, options.records)
            ports = [in_process(serve, make) for serve in (serve_flight, serve_http)]
            makers = {
                LOCAL: lambda: (roivault(full, keys)[0], None),
                "local roivault f16": lambda: (roivault(half, keys)[0], None),
                "local volta": lambda: (read_volta, None),
                OURS: lambda: (roivault(url, keys)[0], None),
                f"{OURS}, ahead": lambda: roivault(url, keys),
                "flight gather": lambda: (flight_gather(ports[0]), None),
                "http": lambda: (http(ports[1]), None),
            }
            if redis:
                makers["redis"] = lambda: (redis_mget(redis), None)
            context, pipes = multiprocessing.get_context("fork"), []
            for _ in range(CLIENTS):
                pipe, other = context.Pipe()
                context.Process(target=client, args=(other, makers, keys), daemon=True).start()
                other.close()
                pipes.append(pipe)
                assert pipe.recv() == "ready"
            found = measure(pipes, list(makers), options.turns, options.seconds)
            for pipe in pipes:
                pipe.send(None)
            server.terminate()
    report(found, list(makers), options, bool(redis))


def report(found: dict[tuple, list], names: Sequence[str], options: argparse.Namespace, redis: bool) -> None:
    def ratio(name: str, base: str, batch: int, clients: int) -> float:
        pairs = zip(found[name, batch, clients], found[base, batch, clients], strict=True)
        return statistics.median(mine[0] / its[0] for mine, its in pairs)

    def row(name: str, batch: int, clients: int) -> dict[str, float]:
        turns = found[name, batch, clients]
        times = np.concatenate([times for _, times in turns]) * 1e3
        return {
            "of local": ratio(name, LOCAL, batch, clients),
            "records/s": statistics.median(rate for rate, _ in turns),
            "p50 ms": float(np.percentile(times, 50)),
            "p99 ms": float(np.percentile(times, 99)),
        }

    rows = {(name, *case): row(name, *case) for case in ((BATCH, 1), (BATCH, CLIENTS), (1, 1), (1, CLIENTS))
            for name in names}  # fmt: skip
    gates = [(*gate, ratio(gate[2], gate[3], *gate[:2])) for gate in GATES]
    if options.json:
        print(json.dumps({"rows": [[*case, values] for case, values in rows.items()], "gates": gates}, indent=2))
        return
    print(f"{options.turns} turns of {options.seconds} s, {options.records} records of {N} x {D}")
    for (name, batch, clients), values in rows.items():
        if name == names[0]:
            print(f"\nbatches of {batch}, {clients} client{'s' * (clients > 1)}")
        print(f"  {name:22}" + "".join(f"{column:>11} {value:10.3f}" for column, value in values.items()))
    print() if redis else print("\nredis is not installed here: not measured")
    for batch, clients, name, base, least, aim, reached in gates:
        verdict = "ok  " if reached >= aim else "gate" if reached >= least else "LOW "
        what = f"{name}, batches of {batch}, {clients} clients"
        print(f"{verdict} {what}: {reached:.3f} of {base}, gate {least}, aim {aim}")


if __name__ == "__main__":
    main()
