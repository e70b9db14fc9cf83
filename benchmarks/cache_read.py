"""How fast does a trainer read batches? Ours against the layouts that others use, and against the limit of the memory.

    python benchmarks/cache_read.py [--records 600] [--turns 25] [--dir DIR] [--json]

Every turn reads one batch of 64 random images, 36 regions of 2048 features, into one reused float32 tensor, once with
each layout, in random order. So each turn gives one ratio per layout under the same load of the machine, and the table
has their medians; CPU time is what a busy machine disturbs least. All files are in the page cache. Ours is what
`RegionLoader` does, which also writes the mask and the location vectors.

Two more tables are made in the same way, for which time on the wall counts: all images through two worker processes,
where the CPU time shown is that of all three; and a batch of which nothing is in the page cache, from the same shard
file through LMDB and through ours, with the bytes that the disk had to deliver. For it DIR must be on a disk.

The other layouts are described in `cache_layouts.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cache_layouts import Reader, Records, flat_mmap, h5_contig, h5_groups, memcpy, npy, volta  # noqa: E402

from cache import Regions, StoreWriter, open_store  # noqa: E402
from cache.collate import Collation  # noqa: E402
from cache.dataset import RegionBatch, RegionDataset, RegionLoader  # noqa: E402

BATCH, N, D = 64, 36, 2048
GATES = (  # alternative, compared with, least ratio of CPU times (of wall times for workers and for cold reads)
    ("roivault f32", "volta", 15.0),
    ("roivault f16", "volta", 12.0),
    ("roivault f32", "h5 groups", 5.0),
    ("roivault f32", "npy", 3.0),
    ("roivault f32", "h5 contig", 2.0),
    ("roivault f32", "flat mmap", 0.85),
    ("roivault f32", "memcpy", 0.65),
    ("roivault f16", "roivault f32", 0.75),
    ("2 workers, roivault f32", "2 workers, volta", 4.0),
    ("cold, roivault f16", "cold, lmdb f16", 4.0),
)
MOST_BYTES = 1.1  # that the disk delivers for each byte of a record


def make_records(count: int) -> Records:
    """Features like those of a detector: not negative, two in five zero."""
    rng = np.random.default_rng(0)
    records = {}
    for i in range(count):
        features = np.maximum(rng.normal(0.25, 1, (N, D)), 0).astype(np.float32)
        boxes = np.sort(rng.uniform(0, 600, (N, 2, 2)).astype(np.float32), axis=1).reshape(N, 4)
        records[f"COCO_val2014_{i:012d}.jpg"] = features, boxes
    return records


def write_store(folder: Path, records: Records, feature_dtype: str) -> Path:
    path = folder / f"{feature_dtype}.roi"
    with StoreWriter(path, feature_dtype) as writer:
        for key, (features, boxes) in records.items():
            writer.write([Regions(key, 640, 480, boxes, features)])
    return path


def roivault(path: Path, keys: Sequence[str]) -> Reader:
    dataset, places, collate = RegionDataset(path, keys), {key: place for place, key in enumerate(keys)}, Collation()
    batch = collate(dataset.boxes_and_features(range(BATCH)))

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        nonlocal batch
        if batch.features is not features:
            batch = RegionBatch(features, batch.mask, boxes, batch.locations, batch.num_regions, [])
        batch = collate(dataset.boxes_and_features([places[key] for key in keys]), batch)

    return read


def measure(
    readers: dict[str, Reader], records: Records, turns: int, seed: int
) -> dict[str, list[tuple[float, float]]]:
    """name -> (wall, CPU) seconds per record of each turn."""
    rng = random.Random(seed)
    keys = list(records)
    features, boxes = torch.zeros(BATCH, N, D), torch.zeros(BATCH, N, 4)
    for name, read in readers.items():
        for start in range(0, len(keys), BATCH):  # also warms the page cache
            chosen = (keys + keys)[start : start + BATCH]
            read(chosen, features, boxes)
            for row, key in enumerate(chosen):
                error = np.abs(features[row].numpy() - records[key][0]).max()
                assert error < (0.01 if "f16" in name else 1e-9) and np.array_equal(boxes[row], records[key][1]), name
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    for _ in range(turns):
        chosen = rng.sample(keys, BATCH)
        for name in rng.sample(list(readers), len(readers)):
            wall, cpu = time.perf_counter(), time.process_time()
            readers[name](chosen, features, boxes)
            times[name].append(((time.perf_counter() - wall) / BATCH, (time.process_time() - cpu) / BATCH))
    return times


class OneByOne(Dataset):
    """A layout as a dataset: for the workers of a plain DataLoader."""

    def __init__(self, read: Reader, keys: Sequence[str]):
        self.read, self.keys = read, keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        features, boxes = torch.empty(1, N, D), torch.empty(1, N, 4)
        self.read([self.keys[index]], features, boxes)
        return features[0], boxes[0]


def measure_workers(path: Path, volta: Reader, keys: Sequence[str], turns: int) -> dict[str, list]:
    """name -> (wall, CPU) seconds per record of each pass over all images with 2 workers."""
    common = dict(shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    loaders = {
        "2 workers, volta": DataLoader(OneByOne(volta, keys), BATCH, **common),
        "2 workers, roivault f32": RegionLoader(path, keys, BATCH, **common),
    }
    times: dict[str, list] = {name: [] for name in loaders}
    for turn in range(turns + 1):
        for name in random.Random(turn).sample(list(loaders), len(loaders)):
            wall, cpu = time.perf_counter(), cpu_of_family()
            for _ in loaders[name]:
                pass
            if turn:  # the first one starts the workers
                times[name].append(((time.perf_counter() - wall) / len(keys), (cpu_of_family() - cpu) / len(keys)))
    return times


def cpu_of_family() -> float:
    """CPU seconds of this process and its worker processes so far."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure_cold(path: Path, keys: Sequence[str], turns: int) -> tuple[dict[str, list], dict[str, float]]:
    """name -> (wall, CPU) seconds per record of each batch; name -> bytes from the disk for each byte of a record."""
    shard = path / "shard-00000.lmdb"
    os.sync()  # what is not on the disk yet stays in memory
    length = open_store(path).location(keys[0])[2]

    def lmdb_get(chosen: Sequence[str]) -> None:
        with lmdb.open(str(shard), subdir=False, readonly=True, lock=False, readahead=False, max_dbs=4) as env:
            database = env.open_db(b"records", create=False)
            with env.begin(buffers=True) as txn:
                for key in chosen:
                    bytes(txn.get(key.encode(), db=database))

    def ours(chosen: Sequence[str]) -> None:
        open_store(path, verify="never").get_many(chosen, read="pread")

    readers = {"cold, lmdb f16": lmdb_get, "cold, roivault f16": ours}
    times: dict[str, list] = {name: [] for name in readers}
    delivered = dict.fromkeys(readers, 0)
    rng = random.Random(1)
    for _ in range(turns):
        chosen = rng.sample(list(keys), BATCH)
        for name in rng.sample(list(readers), len(readers)):
            with open(shard, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            wall, cpu, before = time.perf_counter(), time.process_time(), disk_bytes()
            readers[name](chosen)
            times[name].append(((time.perf_counter() - wall) / BATCH, (time.process_time() - cpu) / BATCH))
            delivered[name] += disk_bytes() - before
    return times, {name: count / (turns * BATCH * length) for name, count in delivered.items()}


def disk_bytes() -> int:
    """That the disk has delivered to this process so far."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["read_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", help="where the files are made, and removed; default the temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder, records = Path(name), make_records(max(options.records, BATCH))
        keys = list(records)
        full, half = (write_store(folder, records, dtype) for dtype in ("float32", "float16"))
        readers = {
            "volta": volta(folder, records),
            "h5 groups": h5_groups(folder, records),
            "h5 contig": h5_contig(folder, records),
            "npy": npy(folder, records),
            "flat mmap": flat_mmap(folder, records),
            "memcpy": memcpy(records),
            "roivault f32": roivault(full, keys),
            "roivault f16": roivault(half, keys),
        }
        times = measure(readers, records, options.turns, options.seed)
        times |= measure_workers(full, readers["volta"], keys, options.turns // 3)
        shutil.copytree(half, folder / "cold.roi")  # mapped nowhere, so that its pages can be dropped
        cold, amplification = measure_cold(folder / "cold.roi", keys, options.turns)
        times |= cold
        sizes = {path.stem: os.path.getsize(path / "shard-00000.lmdb") / (len(keys) * N * (D + 4) * 4)
                 for path in (full, half)}  # fmt: skip

    def ratio(name: str, base: str) -> float:
        clock = int(name in readers)
        return statistics.median(b[clock] / a[clock] for a, b in zip(times[name], times[base], strict=True))

    def row(name: str) -> dict[str, float]:
        bases = {"volta": "volta", "flat mmap": "flat mmap", "memcpy": "memcpy"} if name in readers else {}
        bases |= {"volta": "2 workers, volta"} if name.startswith("2 w") else {}
        bases |= {"lmdb": "cold, lmdb f16"} if name.startswith("cold") else {}
        clocks = {f"{word} us/record": statistics.median(pair[i] for pair in times[name]) * 1e6
                  for i, word in enumerate(("wall", "CPU"))}  # fmt: skip
        return clocks | {f"{word} = 1": ratio(name, base) for word, base in bases.items()}

    rows = {name: row(name) for name in times}
    gates = [(name, base, least, ratio(name, base)) for name, base, least in GATES]
    if options.json:
        print(json.dumps({"rows": rows, "gates": gates, "sizes": sizes, "bytes from disk": amplification}, indent=2))
        return
    print(f"{options.turns} turns, batches of {BATCH}, {len(records)} records of {N} x {D}; speed, larger is better")
    for name, values in rows.items():
        print(f"{name:32}" + "".join(f"{column:>18} {value:8.2f}" for column, value in values.items()))
    for name, base, least, found in gates:
        print(f"{'ok  ' if found >= least else 'LOW '} {name} is {found:.2f} times as fast as {base}, aim {least}")
    for name, count in amplification.items():
        verdict = ("ok  " if count <= MOST_BYTES else "HIGH") if "roivault" in name else "    "
        print(f"{verdict} {name}: the disk delivers {count:.3f} bytes for each byte of a record, aim {MOST_BYTES}")
    for (name, size), most in zip(sizes.items(), (1.02, 0.53), strict=True):
        print(f"{'ok  ' if size <= most else 'HIGH'} {name}: {size:.3f} bytes on disk for one of float32, aim {most}")


if __name__ == "__main__":
    main()
