from __future__ import annotations

import os
import random

import pytest

from cache import Failure, StoreWriter
from cache.manifest import Manifest
from cache.pages import read_pages
from cache.snapshot import load_index


@pytest.fixture
def store(tmp_path, make):
    """Two shards, the last one open, with pages that were freed, states that were replaced, and long failures."""
    path = tmp_path / "s.roi"
    rng = random.Random(0)
    with pytest.raises(RuntimeError), StoreWriter(path, "float32") as writer:
        for i in range(120):
            if i == 60:
                writer.seal()
            keys = [f"folder/with/a/name/{rng.randrange(400)}.jpg" for _ in range(6)]
            failures = [Failure(key, "empty", "x" * rng.choice([3, 3000])) for key in {keys[5]}]
            mode = rng.choice(["drop", "replace"])
            writer.write([make(key, salt=i, d=30) for key in sorted(set(keys[:5]))], failures, mode)
        raise RuntimeError
    assert [shard.sealed for shard in Manifest.load(path).shards] == [True, False]
    return path


def values(contents) -> list[tuple]:
    return sorted(tuple(node) for node in contents.nodes if node.length)


def test_what_lmdb_reads_is_found(store):
    shard = Manifest.load(store).shards[0]
    contents = read_pages(store / shard.file)
    expected = load_index(store, shard)
    assert values(contents) == sorted((key, entry.offset, entry.length) for key, entry in expected.states())
    assert sorted(node.key for node in contents.nodes if not node.length) == sorted(
        key for key, entry in expected.states() if entry.flags & 2
    )
    assert contents.certain and contents.whole
    assert (contents.entries[b"records"], contents.entries[b"failures"]) == (expected.records, expected.failures)


def test_a_damaged_branch_hides_nothing(store):
    path = store / "shard-00001.lmdb"
    data = bytearray(path.read_bytes())
    before = read_pages(path)
    branches = [
        page for page in range(0, len(data), 4096)
        if int.from_bytes(data[page : page + 8], "little") == page // 4096 and data[page + 10] == 1
    ]  # fmt: skip
    assert branches and before.whole
    for page in branches:
        data[page : page + 4096] = bytes(4096)
    path.write_bytes(data)
    after = read_pages(path)
    assert values(after) == values(before) and after.certain and not after.whole


def test_without_the_last_transaction_nothing_is_certain(store):
    path = store / "shard-00001.lmdb"
    before = read_pages(path)
    with open(path, "r+b") as file:
        file.write(bytes(4096))
    after = read_pages(path)
    assert not after.certain and not after.whole and set(values(before)) <= set(values(after))


def test_a_damaged_node_costs_no_other(store):
    path = store / "shard-00001.lmdb"
    data, before = bytearray(path.read_bytes()), read_pages(path)
    node = max(before.nodes, key=lambda node: node.offset if node.length < 2000 else 0)
    key = node.offset - len(node.key)
    for start, end in [(key - 8, node.offset), (key, key + 3)]:  # all of it; a key that is out of order now
        altered = bytearray(data)
        altered[start:end] = bytes(end - start)
        path.write_bytes(altered)
        after = read_pages(path)
        assert set(after.nodes) >= set(before.nodes) - {node} and after.certain and not after.whole


def test_any_bytes_are_read_to_an_end(tmp_path, store):
    data = (store / "shard-00001.lmdb").read_bytes()
    rng = random.Random(1)
    path = tmp_path / "x"
    samples = [b"", b"x", data[:100], data[:4096], data[:9000], rng.randbytes(50_000)]
    for _ in range(300):
        altered = bytearray(data)
        for _ in range(rng.choice([1, 5, 200])):
            page = rng.randrange(len(data) // 4096) * 4096
            altered[page + rng.randrange(rng.choice([24, 4096]))] = rng.choice([0, 1, 2, 255, rng.randrange(256)])
        samples.append(bytes(altered[: rng.choice([len(data), rng.randrange(len(data))])]))
    for sample in samples:
        path.write_bytes(sample)
        contents = read_pages(path)
        assert all(node.offset >= 0 and node.length >= 0 for node in contents.nodes)


def test_blocks_that_the_disk_does_not_give(store, monkeypatch):
    path = store / "shard-00001.lmdb"
    before = read_pages(path)
    mark = max(node.offset for node in before.nodes if not node.length) - 1
    pread = os.pread

    def fail(fd, size, offset):
        if offset <= mark < offset + size:
            raise OSError(5, "Input/output error")
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", fail)
    assert set(values(read_pages(path))) == set(values(before))
