"""Stores to convert, and what a conversion must keep."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from cache import Failure, Regions, StoreWriter

WORDS = {"classes": ["cat", "dog", "tree", "car", "sky"], "attributes": ["big", "red", "old", "wet"]}


@pytest.fixture
def full(make):
    """A record with everything; `scores` differ from `class_probs` or are the same."""

    def make_full(key: str, n: int = 3, same_scores: bool = True, **kwargs) -> Regions:
        regions = make(key, n, **kwargs)
        rng = np.random.default_rng(n)
        return regions.replace(
            scores=regions.class_probs if same_scores else regions.scores,
            class_scores=rng.random((n, 5), np.float32),
            global_features=rng.random(6, np.float32),
        )

    return make_full


@pytest.fixture
def records(full):
    """Records whose keys every layout can hold."""
    return [
        full("COCO_val2014_000000520430", 4),
        full("sw/39-11", 1),
        full("n161313", 36),
        full("ünï-日本", 2),
        full("empty", 0),
        full("a b", 5),
    ]


@pytest.fixture
def store(tmp_path, records):
    path = tmp_path / "source store.roi"
    with StoreWriter(path, "float32", {"model": "m", "feature_dtype": "float32"}, WORDS, {"device": "cpu"}) as writer:
        writer.write(records, [Failure("broken", "truncated", "cut short", "x.jpg")])
    return path


@pytest.fixture
def put_store(tmp_path):
    """A store of some records, without names or a fingerprint."""

    def put(records: list[Regions], dtype: str = "float32", name: str = "some.roi"):
        with StoreWriter(tmp_path / name, dtype) as writer:
            writer.write(records)
        return tmp_path / name

    return put


@pytest.fixture
def peer_file():
    """A file of the published systems' own trees: the folder in ROIVAULT_PEERS, one subfolder for each."""

    def find(path: str) -> Path:
        file = Path(os.environ.get("ROIVAULT_PEERS", "/nonexistent"), path)
        if not file.is_file():
            pytest.skip(f"the peer's {path} is not here (ROIVAULT_PEERS)")
        return file

    return find


@pytest.fixture
def peer(peer_file):
    """Loads such a file as a module."""

    def load(path: str):
        spec = importlib.util.spec_from_file_location("peer", peer_file(path))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
