"""What Ray costs: the Ray engine beside the local one, beside the ideal, and on a listing of a million names.

    python benchmarks/ray_overhead.py [cpu] [pace] [first] [memory]     # all by default; some ten minutes

    cpu      CPU seconds of all processes, with the `demo` model: at most 1.15 times the local engine's and 15 more
    pace     images per second with a model that sleeps 20 ms an image: at least 0.9 of 50 a model, with 1 and 2 models
    first    seconds to the first record of a million names: those of a thousand and 1.5 sorted listings, at most
    memory   bytes that each listed name takes: at most 200

CPU seconds are sampled from /proc, so that Ray's are a lower bound, by a fraction of a second a process.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cache import Failure, Regions, StoreWriter, open_store  # noqa: E402
from extractor.images import decode  # noqa: E402
from extractor.scenes import write_scenes  # noqa: E402

SCENES, SLEPT, NAMES, FEW_NAMES = 100, 1000, 1_000_000, 1_000
SLEEP = 0.02
TICKS = os.sysconf("SC_CLK_TCK")


class Sleeper:
    """A model that takes 20 ms an image, as a GPU would, and notes when each of them was done."""

    device, precision = "sleep", "float32"

    def __init__(self, choices, notes: str):
        self.policy, self._notes = choices.policy, notes

    def decode(self, source, key):
        return decode(source, key, self.policy)

    def extract(self, images, keys):
        return [self._regions(image, key) for image, key in zip(images, keys, strict=True)]

    def _regions(self, image, key):
        time.sleep(SLEEP)
        with open(self._notes, "a") as file:
            file.write(f"{time.time()}\n")
        box = np.array([[0, 0, image.width, image.height]], np.float32)
        features = np.ones((1, 2048), np.float32)
        return Regions(key, image.width, image.height, box, features, source_digest=image.source_digest)


def family(pid: int) -> dict[int, float]:
    """CPU seconds so far of a process and its descendants."""
    spent, parents = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)], spent[int(name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    found, ahead = {}, [pid]
    while ahead:
        parent = ahead.pop()
        found[parent] = spent.get(parent, 0.0)
        ahead += [child for child, above in parents.items() if above == parent]
    return found


@dataclass
class Cost:
    """Of a process and all it starts: CPU and wall seconds, and the most memory of its own that the first one had."""

    cpu: float = 0.0
    wall: float = 0.0
    memory: int = 0


def run(source: Path, store: Path, *options: str, until: Callable[[], bool] | None = None) -> Cost:
    """Extract in a process of its own; killed when `until` is true."""
    line = [sys.executable, ROOT / "roivault.py", "extract", source, "-o", store, "--model", "demo", "--quiet"]
    begin, spent, cost = time.monotonic(), {}, Cost()
    process = subprocess.Popen([*map(str, line), "--max-failures", "100%", *options])
    while process.poll() is None:
        for pid, seconds in family(process.pid).items():
            spent[pid] = max(seconds, spent.get(pid, 0.0))
        cost.memory = max(cost.memory, anonymous(process.pid))
        if until is not None and until():
            process.kill()
        time.sleep(0.02 if until else 0.2)
    if until is None and process.returncode not in (0, 65):
        raise SystemExit(f"extract ended with {process.returncode}")
    cost.cpu, cost.wall = sum(spent.values()), time.monotonic() - begin
    return cost


def anonymous(pid: int) -> int:
    """Bytes of memory that are no pages of files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def cpu(place: Path) -> None:
    write_scenes(place / "scenes", SCENES, 0)
    costs, threads = {}, str(max(1, (os.cpu_count() or 1) - 1))  # one is left for what is not the model
    for engine in ("local", "ray"):
        options = ("--engine", engine, "--device", "cpu", "--threads", threads)
        costs[engine] = run(place / "scenes", place / f"{engine}.roi", *options)
        print(f"cpu      {engine}: {costs[engine].cpu:.1f} CPU s, {costs[engine].wall:.1f} s, for {SCENES} images")
    local, ray = (open_store(str(place / f"{engine}.roi")) for engine in costs)
    if any(not np.array_equal(local[key].features, ray[key].features) for key in local.keys()):
        raise SystemExit("the engines differ")
    report("cpu", costs["ray"].cpu, 1.15 * costs["local"].cpu + 15, "CPU s")


def pace(place: Path) -> None:
    from ray_jobs.ray_environment import prepare_environment

    prepare_environment(None)
    import ray

    from ray_jobs.extract import run_extract
    from ray_jobs.options import ExtractOptions

    (place / "small").mkdir()
    for index in range(SLEPT):
        Image.new("RGB", (64, 48), (index % 256, index // 256, 0)).save(place / "small" / f"{index:04d}.jpg")
    for models in (1, 2):
        folder = tempfile.mkdtemp(prefix="rv", dir="/tmp")
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        ray.init("local", num_cpus=models + 1, _temp_dir=folder, _node_ip_address="127.0.0.1", **quiet)
        notes = place / f"notes{models}"
        store, chosen = place / f"{models}.roi", {"engine": "ray", "device": "cpu", "threads": 1, "quiet": True}
        options = ExtractOptions(str(place / "small"), str(store), "demo", **chosen)
        run_extract(options, load=functools.partial(Sleeper, notes=str(notes)))
        ray.shutdown()
        done = sorted(map(float, notes.read_text().split()))
        reached = (len(done) - 1) / (done[-1] - done[0])
        report(f"pace, {models}", -reached / (models / SLEEP), -0.9, "of the ideal")


def first(place: Path) -> None:
    seconds = {}
    for count in (FEW_NAMES, NAMES):
        folder, store = names(place, count), place / f"{count}.first.roi"
        until = functools.partial(has_record, store)
        seconds[count] = run(folder, store, "--engine", "ray", "--device", "cpu", until=until).wall
    begin = time.monotonic()
    with os.scandir(folder) as entries:
        sorted(entry.name for entry in entries)
    listing = time.monotonic() - begin
    print(f"first    {seconds[FEW_NAMES]:.1f} s of {FEW_NAMES:,} names; a sorted listing of {NAMES:,}: {listing:.1f} s")
    report("first", seconds[NAMES], seconds[FEW_NAMES] + 1.5 * listing, "s")


def memory(place: Path) -> None:
    """Names that the store has failures of already: what is left is the listing."""
    peaks = {}
    for count in (FEW_NAMES, NAMES):
        folder, store = names(place, count), place / f"{count}.memory.roi"
        run(place / f"names{FEW_NAMES}", store, "--limit", "1")  # a store of these choices
        keys = sorted(os.listdir(folder))
        with StoreWriter(store) as writer:
            for start in range(0, count, 20_000):
                writer.write((), [Failure(key, "empty", "no bytes") for key in keys[start : start + 20_000]], "drop")
        peaks[count] = run(folder, store).memory
    report("memory", (peaks[NAMES] - peaks[FEW_NAMES]) / (NAMES - FEW_NAMES), 200, "bytes a name")


def names(place: Path, count: int) -> Path:
    """A folder of so many names of 16 pictures."""
    folder = place / f"names{count}"
    if not folder.exists():
        folder.mkdir()
        for index in range(16):
            Image.new("RGB", (64, 48), (index, 0, 0)).save(folder / f"{index:07d}.jpg")
        for index in range(16, count):
            os.link(folder / f"{index % 16:07d}.jpg", folder / f"{index:07d}.jpg")
        os.sync()  # or the store's own writes would wait for those of the names
    return folder


def has_record(store: Path) -> bool:
    return (store / "manifest.json").exists() and len(open_store(str(store))) > 0


def report(name: str, value: float, limit: float, unit: str) -> None:
    """Say whether a value keeps its limit; negative ones are least values."""
    kept = "ok" if value <= limit else "TOO MUCH" if limit > 0 else "TOO LITTLE"
    print(f"{name:<8} {abs(value):.2f} {unit}, {'at most' if limit > 0 else 'at least'} {abs(limit):.2f}: {kept}")


def main() -> None:
    parts = {part.__name__: part for part in (cpu, pace, first, memory)}
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory() as place:
            parts[name](Path(place))


if __name__ == "__main__":
    main()
