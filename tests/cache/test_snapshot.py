from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cache import CorruptRecord, Failure, StoreDamaged, StoreWriter, environment, open_store
from cache.snapshot import Snapshot, load_index, load_merged


@pytest.fixture
def path(tmp_path, make):
    """Two shards in index.idx, one sealed later, one open."""
    path = tmp_path / "s.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a"), make("b")], [Failure("f", "empty", "m")])
        writer.seal()
        writer.write([make("c")])
    merged = (path / "index.idx").read_bytes()
    with StoreWriter(path, "float32") as writer:
        writer.write([make("d"), make("f")], on_duplicate="drop")
    (path / "index.idx").write_bytes(merged)
    writer = StoreWriter(path, "float32")
    writer.write([make("a", salt=1)], [Failure("g", "empty", "m")], "replace")
    writer.__exit__(RuntimeError)
    return path


def shards_of(snapshot: Snapshot) -> dict[bytes, int]:
    return {key: entry.shard for key, entry in snapshot.resolved().states()}


def test_layers(path):
    snapshot = Snapshot(path)
    assert set(snapshot.merged.covers) == {0, 1} and len(snapshot.unmerged) == 1 and list(snapshot.open) == [3]
    states = snapshot.states(["a", "b", "c", "d", "f", "g", "x", "", "k" * 600, "\udcff"])
    assert [state and (state.shard, state.is_record) for state in states] == [
        (3, True), (0, True), (1, True), (2, True), (2, True), (3, False), None, None, None, None
    ]  # fmt: skip
    assert shards_of(snapshot) == {b"a": 3, b"b": 0, b"c": 1, b"d": 2, b"f": 2, b"g": 3}
    assert snapshot.resolved().records == 5 and snapshot.resolved() is snapshot.resolved()
    assert snapshot.failure("g", states[5]) == Failure("g", "empty", "m")


def test_values_of_an_open_shard_are_copied_only_when_asked_for(path):
    snapshot = Snapshot(path)
    assert snapshot.states(["a"], records=False)[0].value is None
    assert snapshot.states(["g"], records=False)[0].value is not None
    assert len(snapshot.states(["a"])[0].value) >= 2048


def test_some_shards(path):
    assert sorted(shards_of(Snapshot(path, shards=frozenset({0, 2})))) == [b"a", b"b", b"d", b"f"]


def test_a_merged_index_ahead_of_the_manifest_is_not_used(path):
    manifest = Snapshot(path).manifest
    assert load_merged(path, manifest.only({0, 3})) is None
    assert load_merged(path, manifest.only({0, 1})) is not None


def test_an_index_of_another_shard_is_found_out(path):
    shards = Snapshot(path).manifest.shards
    (path / shards[0].index_file).write_bytes((path / shards[1].index_file).read_bytes())
    with pytest.raises(StoreDamaged, match="the manifest says"):
        load_index(path, shards[0])


def test_a_shard_that_goes_while_the_snapshot_is_taken(path, monkeypatch):
    """The writer removes or seals an open shard between our look at the manifest and at the file."""
    writer = StoreWriter(path, "float32")
    acquire, calls = environment.Environment.acquire.__func__, []

    def seal_first(cls, *args, **kwargs):
        if not calls:
            calls.append(1)
            writer.close()
            raise FileNotFoundError
        return acquire(cls, *args, **kwargs)

    monkeypatch.setattr(environment.Environment, "acquire", classmethod(seal_first))
    snapshot = Snapshot(path)
    assert calls and not snapshot.open and snapshot.resolved().records == 5


def test_without_a_lock_reads_are_checked_and_tried_again(path, monkeypatch):
    snapshot = Snapshot(path)
    snapshot.states(["a"])
    snapshot.open[3].lockless = True
    value, torn = environment.View.value, [3]

    def sometimes_torn(self, key, flags):
        torn[0] -= 1
        data = np.frombuffer(value(self, key, flags), np.uint8).copy()
        data[-1] ^= torn[0] >= 0
        return memoryview(data)

    monkeypatch.setattr(environment.View, "value", sometimes_torn)
    assert len(snapshot.states(["a"])[0].value) >= 2048 and torn[0] == -1
    torn[0] = 1000
    with pytest.raises(CorruptRecord):
        snapshot.states(["a"])


def test_what_another_process_sealed_is_not_opened_with_lmdb(path, repo_root):
    """LMDB would make a lock file there, which belongs to open shards only."""
    before = Snapshot(path)
    code = "import sys; from cache import StoreWriter; StoreWriter(sys.argv[1], 'float32').close()"
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=repo_root, check=True)
    for read in (before.resolved, lambda: before.states(["a"])):
        with pytest.raises(FileNotFoundError):
            read()
    assert open_store(path)["a"].key == "a" and not list(path.glob("*-lock"))
