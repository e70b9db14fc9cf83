"""One process writes, seals, replaces, stops and goes on, while others read: no error, no torn record, nothing lost."""

from __future__ import annotations

import json
import os
import random
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from cache import Failure, Regions, StoreNotFound, StoreWriter, open_store
from cache.verify import verify

KEYS = 400
READERS = 4


def version(key: str, number: int) -> Regions:
    """What the number-th write of a key stores; the width of the image tells which one it was."""
    n = 1 + number % 5
    features = np.full((n, 40), 1 + number, np.float32) + np.arange(40, dtype=np.float32)
    return Regions(key, 1 + number, 480, np.tile(np.float32([0, 0, number, 9]), (n, 1)), features)


def is_whole(regions: Regions) -> bool:
    expected = version(regions.key, regions.width - 1)
    return np.array_equal(regions.features, expected.features) and np.array_equal(regions.boxes, expected.boxes)


def write(path: Path, until: float) -> dict:
    """A batch a transaction, shards of a few; the writer is renewed now and then, every third leaves its shard open."""
    rng, number, lives = random.Random(0), 0, 0
    while time.time() < until:
        writer = StoreWriter(path, "float32", {"x": 1}, shard_size=150_000)
        for _ in range(rng.randrange(20)):
            number += 1
            keys = rng.sample(range(KEYS), 8)
            records = [version(f"k{key}", number) for key in keys]
            writer.write(records, [Failure(f"f{number % 50}", "empty", "m")], rng.choice(["drop", "replace"]))
        lives += 1
        writer.__exit__(RuntimeError if lives % 3 == 0 else None)
    StoreWriter(path, "float32", {"x": 1}).close()
    return {"batches": number, "lives": lives}


def read(path: Path, until: float, seed: int) -> dict:
    rng, seen, reads, most, store = random.Random(seed), {}, 0, 0, None
    while time.time() < until:
        if store is None or rng.random() < 0.05:
            try:
                store = open_store(path, verify=rng.choice(["first", "always"]))
            except StoreNotFound:
                continue  # the writer has not begun
        if rng.random() < 0.5:
            store.refresh()
        keys = [f"k{key}" for key in rng.sample(range(KEYS), 16)]
        for regions in store.get_many(keys, missing="skip", read=rng.choice(["mmap", "pread"])):
            assert is_whole(regions), regions
            seen[regions.key] = regions
            reads += 1
        if rng.random() < 0.1:
            held = len(list(store.keys()))
            assert most <= held <= len(store), (most, held)
            most = held
            assert all(failure.kind == "empty" for failure in store.failures())
    assert all(is_whole(regions) for regions in seen.values())  # views outlive what the writer did since
    return {"reads": reads, "seen": len(seen)}


def in_child(work, *args) -> tuple[int, int]:
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        try:
            told = {"result": work(*args)}
        except BaseException:
            told = {"error": traceback.format_exc()}
        os.write(into, json.dumps(told).encode()[:60_000])
        os._exit(0)
    os.close(into)
    return child, out


@pytest.mark.parametrize("seconds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_live_writer_and_its_readers(tmp_path, seconds):
    path, until = tmp_path / "live.roi", time.time() + seconds
    children = [in_child(write, path, until), *(in_child(read, path, until, seed) for seed in range(READERS))]
    told = []
    for child, out in children:
        with open(out) as pipe:
            told.append(json.loads(pipe.read()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not [t["error"] for t in told if "error" in t], "\n".join(t["error"] for t in told if "error" in t)
    assert told[0]["result"]["lives"] > 1 and all(t["result"]["reads"] > 0 for t in told[1:]), told
    assert verify(path).ok and all(is_whole(regions) for regions in map(open_store(path).get, open_store(path).keys()))
