"""What does a store of many keys cost to open and to look things up in? Time and private memory.

    python benchmarks/cache_scale.py [--keys 10000000] [--dir DIR] [--json]

The store is made up: an index of as many keys as asked for, whose entries all point at the one record of a real shard.
Everything is measured in new processes, with the files in the page cache, as medians:

* opening the index beside mapping its file into memory and reading one page; the whole store beside both
* one batch of 64 random keys after another, beside a dict that has the same keys: where the records lie, whether there
  are any, and, which is more than a lookup, the records themselves
* what the process owns in memory then (Private_Dirty of /proc/self/smaps_rollup), beside what it was before
* making a `RegionDataset` of a million keys
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cache import Regions, StoreWriter, open_store  # noqa: E402
from cache.index import FILE, Index, hash_keys  # noqa: E402
from cache.manifest import Manifest  # noqa: E402

BATCH, TURNS, DIGITS, DATASET = 64, 200, 12, 1_000_000
OPEN, MEGABYTES, LOOKUP = 2.0, 50.0, 5.0  # most: times mapping the file, of private memory, times a get of a dict


def key_of(number: int) -> str:
    return f"COCO_train2014_{number:0{DIGITS}}"


def make_store(path: Path, count: int) -> None:
    """A store of `count` keys with one record."""
    with StoreWriter(path, "float32") as writer:
        writer.write([Regions("one", 9, 9, np.zeros((4, 4), np.float32), np.ones((4, 8), np.float32))])
    (path / FILE).unlink(missing_ok=True)
    manifest = Manifest.load(path)
    (shard,) = manifest.shards
    one = Index.open(path / shard.index_file)
    prefix = np.frombuffer(key_of(0)[:-DIGITS].encode(), np.uint8)
    heap = np.empty((count, len(prefix) + DIGITS), np.uint8)
    heap[:, : len(prefix)] = prefix
    for place in range(DIGITS):
        heap[:, -1 - place] = np.arange(count) // 10**place % 10 + ord("0")
    hashes = np.concatenate([
        hash_keys([row.tobytes() for row in heap[first : first + 65536]]) for first in range(0, count, 65536)
    ])  # fmt: skip
    order = np.argsort(hashes)
    width = heap.shape[1]
    columns = {name: np.full(count, column[0], column.dtype) for name, column in one.columns.items()}
    columns |= {"hash": hashes[order], "key_offset": (order * width).astype(np.uint64),
                "key_length": np.full(count, width, np.uint16)}  # fmt: skip
    checksum = Index({}, columns, heap.reshape(-1).data).save(path / shard.index_file)
    shard = replace(
        shard, records=count, index_bytes=os.path.getsize(path / shard.index_file), index_checksum=f"{checksum:016x}"
    )
    replace(manifest, shards=(shard,)).save(path)


def private_megabytes() -> float:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file.readlines()[1:])
    return int(fields["Private_Dirty"].split()[0]) / 1024


def seconds(act: Callable[[], object], turns: int) -> float:
    times = []
    for _ in range(turns):
        start = time.process_time()
        act()
        times.append(time.process_time() - start)
    return statistics.median(times)


def map_file(path: Path) -> int:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size, access=mmap.ACCESS_READ)[0]


def measure_opening(path: Path, count: int) -> dict[str, float]:
    index = path / "shard-00000.idx"
    times = {"map": [], "open the index": [], "open the store": []}
    acts = (lambda: map_file(index), lambda: Index.open(index, put_off=True), lambda: open_store(path))
    for _ in range(TURNS):
        for name, act in zip(times, acts, strict=True):
            start = time.process_time()
            act()
            times[name].append(time.process_time() - start)
    found = {f"{name} us": statistics.median(values) * 1e6 for name, values in times.items()}
    return found | {"open = map x": statistics.median(
        b / a for a, b in zip(times["map"], times["open the index"], strict=True)
    )}  # fmt: skip


def measure_lookups(path: Path, count: int) -> dict[str, float]:
    """Without a dict of keys: what is owned is that of a reader."""
    before, rng = private_megabytes(), random.Random(0)
    store = open_store(path, verify="never")
    batches = iter([[key_of(rng.randrange(count)) for _ in range(BATCH)] for _ in range(4 * TURNS + 4)])
    acts = {"places": store.places, "holds": lambda keys: list(store.holds(keys)), "read": store.get_many,
            "in, one by one": lambda keys: [key in store for key in keys]}  # fmt: skip
    found = {}
    for name, act in acts.items():
        act(next(batches))
        found[f"{name} us/key"] = seconds(lambda act=act: act(next(batches)), TURNS) / BATCH * 1e6
    start = time.process_time()
    assert len(store) == count and "nowhere" not in store
    found["len and a miss ms"] = (time.process_time() - start) * 1e3
    return found | {"private MB": private_megabytes() - before}


def measure_checks(path: Path, count: int) -> dict[str, float]:
    """The first question about what is not there, which compares the checksum of the whole index."""
    before, store = private_megabytes(), open_store(path)
    first, again = (seconds(lambda: len(store), 1), seconds(lambda: len(store), 1))
    return {"first len ms": first * 1e3, "next len ms": again * 1e3, "private MB": private_megabytes() - before}


def measure_dict(path: Path, count: int) -> dict[str, float]:
    rng = random.Random(0)
    known = {key_of(number): number for number in range(count)}
    batches = iter([[key_of(rng.randrange(count)) for _ in range(BATCH)] for _ in range(TURNS)])
    per_key = seconds(lambda: [known.get(key) for key in next(batches)], TURNS) / BATCH
    return {"get us/key": per_key * 1e6, "private MB": private_megabytes()}


def measure_dataset(path: Path, count: int) -> dict[str, float]:
    from cache.dataset import RegionDataset

    keys = list(map(key_of, random.Random(0).sample(range(count), min(DATASET, count))))
    before, start = private_megabytes(), time.process_time()
    dataset = RegionDataset(path, keys)
    made, cpu = private_megabytes() - before, time.process_time() - start
    start = time.process_time()
    dataset.disk_order()
    return {"keys": len(keys), "CPU s": cpu, "private MB": made, "disk order CPU s": time.process_time() - start}


MEASURES = {
    "opening": measure_opening, "lookups": measure_lookups, "checks": measure_checks, "dict": measure_dict,
    "dataset": measure_dataset,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--dir", help="where the store is made, and removed; default the temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, path = options.measure
        print(json.dumps(MEASURES[what](Path(path), options.keys)))
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder) / "many.roi"
        make_store(path, options.keys)
        size = os.path.getsize(path / "shard-00000.idx") / 2**20
        rows = {}
        for what in MEASURES:
            command = [sys.executable, __file__, "--keys", str(options.keys), "--measure", what, str(path)]
            rows[what] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    gates = [
        ("opening the index, in times of mapping it", rows["opening"]["open = map x"], OPEN),
        ("private memory of a reader, MB", rows["lookups"]["private MB"], MEGABYTES),
        *((f"a key of a batch ({name}), in times of a get of a dict",
           rows["lookups"][f"{name} us/key"] / rows["dict"]["get us/key"], LOOKUP) for name in ("places", "holds")),
    ]  # fmt: skip
    if options.json:
        print(json.dumps({"index MB": size, "rows": rows, "gates": gates}, indent=2))
        return
    print(f"{options.keys:,} keys, an index of {size:,.0f} MB")
    for what, values in rows.items():
        print(f"{what:10}" + "".join(f"{name:>22} {value:10,.2f}" for name, value in values.items()))
    for name, found, most in gates:
        print(f"{'ok  ' if found <= most else 'HIGH'} {name}: {found:.2f}, aim at most {most}")


if __name__ == "__main__":
    main()
