"""How fast does a trainer read batches? Ours against the layouts that others use, and against the limit of the memory.

    python benchmarks/cache_read.py [--records 600] [--turns 25] [--dir DIR] [--json]

Every turn reads one batch of 64 random images, 36 regions of 2048 features, into one reused float32 tensor, once with
each layout, in random order. So each turn gives one ratio per layout under the same load of the machine, and the table
has their medians; CPU time is what a busy machine disturbs least. All files are in the page cache.

The layouts: `volta` is the LMDB of the VOLTA code base (a pickled dict an image, features and boxes in base64, and the
position of the key looked up in a list); `h5 groups` one HDF5 group an image; `npy` one .npy file an image, boxes in
another; `flat mmap` one array with a dict of offsets; `memcpy` the same in memory: the limit.
"""

from __future__ import annotations

import argparse
import base64
import json
import mmap
import pickle
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cache import Regions, StoreWriter, open_store  # noqa: E402

BATCH, N, D = 64, 36, 2048
GATES = (  # alternative, compared with, least ratio of CPU times
    ("roivault f32", "volta", 15.0),
    ("roivault f16", "volta", 12.0),
    ("roivault f32", "h5 groups", 5.0),
    ("roivault f32", "npy", 3.0),
    ("roivault f32", "flat mmap", 0.85),
    ("roivault f32", "memcpy", 0.65),
    ("roivault f16", "roivault f32", 0.75),
)

Reader = Callable[[Sequence[str], torch.Tensor, torch.Tensor], None]


def make_records(count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features like those of a detector: not negative, two in five zero."""
    rng = np.random.default_rng(0)
    records = {}
    for i in range(count):
        features = np.maximum(rng.normal(0.25, 1, (N, D)), 0).astype(np.float32)
        boxes = np.sort(rng.uniform(0, 600, (N, 2, 2)).astype(np.float32), axis=1).reshape(N, 4)
        records[f"COCO_val2014_{i:012d}.jpg"] = features, boxes
    return records


def roivault(folder: Path, records: dict, feature_dtype: str) -> Reader:
    path = folder / f"{feature_dtype}.roi"
    with StoreWriter(path, feature_dtype) as writer:
        for key, (features, boxes) in records.items():
            writer.write([Regions(key, 640, 480, boxes, features)])
    store = open_store(path)

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        regions = store.get_many(keys)
        np.stack([item.boxes for item in regions], out=boxes.numpy())
        if feature_dtype == "float32":
            np.stack([item.features for item in regions], out=features.numpy())
        else:  # numpy takes ten times as long to widen numbers as torch
            for row, item in zip(features, regions, strict=True):
                row.copy_(torch.from_numpy(item.features))

    return read


def volta(folder: Path, records: dict) -> Reader:
    with lmdb.open(str(folder / "volta.lmdb"), subdir=False, map_size=4 << 30) as env, env.begin(write=True) as txn:
        for key, (features, boxes) in records.items():
            item = {"img_id": key, "img_h": 480, "img_w": 640, "num_boxes": N}
            item |= {"features": base64.b64encode(features), "boxes": base64.b64encode(boxes)}
            txn.put(key.encode(), pickle.dumps(item))
        txn.put(b"keys", pickle.dumps([key.encode() for key in records]))
    env = lmdb.open(str(folder / "volta.lmdb"), subdir=False, readonly=True, lock=False, readahead=False)
    with env.begin() as txn:
        image_ids = pickle.loads(txn.get(b"keys"))

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            name = image_ids[image_ids.index(key.encode())]
            with env.begin() as txn:
                item = pickle.loads(txn.get(name))
            values = np.frombuffer(base64.b64decode(item["features"]), np.float32).reshape(-1, D)
            features[row].copy_(torch.from_numpy(values.copy()))
            corners = np.frombuffer(base64.b64decode(item["boxes"]), np.float32).reshape(-1, 4)
            boxes[row].copy_(torch.from_numpy(corners.copy()))

    return read


def h5_groups(folder: Path, records: dict) -> Reader:
    with h5py.File(folder / "groups.h5", "w") as file:
        for key, (features, boxes) in records.items():
            group = file.create_group(key)
            group["features"], group["boxes"] = features, boxes
    file = h5py.File(folder / "groups.h5", "r")

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            group = file[key]
            features[row].copy_(torch.from_numpy(group["features"][()]))
            boxes[row].copy_(torch.from_numpy(group["boxes"][()]))

    return read


def npy(folder: Path, records: dict) -> Reader:
    (folder / "npy").mkdir()
    for key, (features, boxes) in records.items():
        np.save(folder / "npy" / f"{key}.npy", features)
        np.save(folder / "npy" / f"{key}_info.npy", boxes)

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            features[row].copy_(torch.from_numpy(np.load(folder / "npy" / f"{key}.npy")))
            boxes[row].copy_(torch.from_numpy(np.load(folder / "npy" / f"{key}_info.npy")))

    return read


def gather(all_features: np.ndarray, all_boxes: np.ndarray, keys: Sequence[str]) -> Reader:
    places = {key: place for place, key in enumerate(keys)}

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        into_features, into_boxes = features.numpy(), boxes.numpy()
        for row, key in enumerate(keys):
            into_features[row] = all_features[places[key]]
            into_boxes[row] = all_boxes[places[key]]

    return read


def flat_mmap(folder: Path, records: dict) -> Reader:
    arrays = []
    for which, shape in enumerate([(N, D), (N, 4)]):
        with open(folder / f"flat{which}", "wb+") as file:
            for pair in records.values():
                file.write(pair[which])
            file.flush()
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays.append(np.frombuffer(data, np.float32).reshape(-1, *shape))
    return gather(*arrays, list(records))


def memcpy(records: dict) -> Reader:
    features, boxes = (np.stack([pair[which] for pair in records.values()]) for which in (0, 1))
    return gather(features, boxes, list(records))


def measure(readers: dict[str, Reader], records: dict, turns: int, seed: int) -> dict[str, list[tuple[float, float]]]:
    """name -> (wall, CPU) seconds per record of each turn."""
    rng = random.Random(seed)
    keys = list(records)
    features, boxes = torch.zeros(BATCH, N, D), torch.zeros(BATCH, N, 4)
    for name, read in readers.items():
        for start in range(0, len(keys) - BATCH + 1, BATCH):  # also warms the page cache
            chosen = keys[start : start + BATCH]
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
        readers = {
            "volta": volta(folder, records),
            "h5 groups": h5_groups(folder, records),
            "npy": npy(folder, records),
            "flat mmap": flat_mmap(folder, records),
            "memcpy": memcpy(records),
            "roivault f32": roivault(folder, records, "float32"),
            "roivault f16": roivault(folder, records, "float16"),
        }
        times = measure(readers, records, options.turns, options.seed)

    def ratio(name: str, base: str, clock: int) -> float:
        return statistics.median(b[clock] / a[clock] for a, b in zip(times[name], times[base], strict=True))

    rows = {
        name: {
            "wall us/record": statistics.median(wall for wall, _ in times[name]) * 1e6,
            "CPU us/record": statistics.median(cpu for _, cpu in times[name]) * 1e6,
            "wall, volta = 1": ratio(name, "volta", 0),
            "CPU, volta = 1": ratio(name, "volta", 1),
            "CPU, flat mmap = 1": ratio(name, "flat mmap", 1),
            "CPU, memcpy = 1": ratio(name, "memcpy", 1),
        }
        for name in times
    }
    gates = [(name, base, least, ratio(name, base, 1)) for name, base, least in GATES]
    if options.json:
        print(json.dumps({"rows": rows, "gates": gates}, indent=2))
        return
    print(f"{options.turns} turns, batches of {BATCH}, {len(records)} records of {N} x {D}; speed, larger is better")
    print(f"{'':14}" + "".join(f"{column:>20}" for column in rows["volta"]))
    for name, row in rows.items():
        print(f"{name:14}" + "".join(f"{value:>20.2f}" for value in row.values()))
    for name, base, least, found in gates:
        print(f"{'ok  ' if found >= least else 'LOW '} {name} is {found:.2f} times as fast as {base}, aim {least}")


if __name__ == "__main__":
    main()
