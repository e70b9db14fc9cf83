"""Reading a store that is damaged, or made to harm its reader."""

from __future__ import annotations

import contextlib
import gc
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from cache import CorruptRecord, Failure, MissingKeys, StoreDamaged, open_store
from cache import store as module
from cache.index import FILE as index_file
from cache.manifest import Manifest
from cache.snapshot import load_index
from cache.verify import verify


def flip(path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))


def test_checksums_the_first_time_always_or_never(build):
    path = build("s.roi", ["a", "b"])
    stores = {verify: open_store(path, verify=verify) for verify in module.VERIFY}
    name, offset, length = stores["first"].location("a")
    assert stores["first"]["a"].key == "a"
    flip(path / f"{name}.lmdb", offset + length - 1)
    assert stores["first"]["a"].key == stores["never"]["a"].key == "a"
    with pytest.raises(CorruptRecord, match="'a'.*checksum"):
        stores["always"]["a"]
    assert stores["always"]["b"].key == "b"
    del stores
    gc.collect()
    with pytest.raises(CorruptRecord):
        open_store(path)["a"]


def test_a_failure_whose_bytes_were_altered(build):
    path = build("s.roi", ["a"], failures=[Failure("f", "empty", "MARKER")])
    data = (path / "shard-00000.lmdb").read_bytes()
    for offset in (i for i in range(len(data)) if data.startswith(b"MARKER", i)):
        flip(path / "shard-00000.lmdb", offset)
    with pytest.raises(CorruptRecord, match="'f'"):
        list(open_store(path).failures())


@pytest.mark.parametrize("name", ["manifest.json", "index.idx", "shard-00000.idx", "shard-00000.lmdb"])
@pytest.mark.parametrize("how", ["cut", "gone", "longer"])
def test_files_that_are_cut_or_gone(build, name, how):
    path = build("s.roi", ["a"])
    if name == "shard-00000.idx":
        (path / "index.idx").unlink()
    file = path / name
    if how == "gone":
        file.unlink()
    elif how == "cut":
        os.truncate(file, file.stat().st_size - 1)
    else:
        with open(file, "ab") as end:
            end.write(b"\0")
    if (name, how) == ("index.idx", "gone"):
        assert open_store(path)["a"].key == "a"  # it holds nothing that the shards do not
        return
    with pytest.raises(StoreDamaged, match=f"{file}.*roivault verify"):
        open_store(path)["a"]


@pytest.mark.parametrize("column, value", [
    ("offset", 1 << 40), ("offset", (1 << 64) - 1), ("length", 1 << 31), ("shard", 7),
])  # fmt: skip
@pytest.mark.parametrize("merged", [True, False])
def test_an_index_that_points_behind_the_end(build, column, value, merged):
    """Its checksum, and that in the manifest, are right: somebody has made it."""
    path = build("s.roi", ["a", "b"], failures=[Failure("f", "empty", "m")])
    manifest = Manifest.load(path)
    index = load_index(path, manifest.shards[0])
    index.columns[column] = np.full_like(index.columns[column], value)
    index.covers = {}
    checksum = index.save(path / manifest.shards[0].index_file)
    manifest.with_shard(replace(manifest.shards[0], index_checksum=f"{checksum:016x}")).save(path)
    (path / "index.idx").unlink()
    if merged:
        index.covers = {0: checksum}
        index.save(path / "index.idx")
    store = open_store(path)
    for use in (
        lambda: store["a"], lambda: store.get("a"), lambda: store.get_many(["a", "b"], read="pread"),
        lambda: store.record("b"), lambda: store.prefetch(["a"]), lambda: store.places(["a"]), lambda: "a" in store,
        lambda: store.location("a"), lambda: list(store.failures()), lambda: store["f"],
    ):  # fmt: skip
        with pytest.raises(StoreDamaged, match="s.roi.*behind the end"):
            use()
    assert not verify(path).ok


@pytest.mark.parametrize("merged", [True, False])
def test_crafted_indexes_raise_named_errors_and_nothing_else(build, merged):
    """Bytes at random, with all checksums made to fit."""
    path = build("s.roi", ["a\u00e9", "b", "c"], ["d"], failures=[Failure("f", "empty", "m")])
    name = index_file if merged else "shard-00000.idx"
    good, manifest, rng = (path / name).read_bytes(), Manifest.load(path), random.Random(0)
    keys, refused = ["a\u00e9", *"bcdfg"], 0
    if not merged:
        (path / index_file).unlink()
    for _ in range(80):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 9])):
            data[rng.randrange(64, len(data))] = rng.choice([0, 255, rng.randrange(256)])
        header = bytearray(data[:64])
        header[32:40] = bytes(8)
        checksum = xxhash.xxh3_64_intdigest(header + data[64:])
        data[32:40] = checksum.to_bytes(8, "little")
        (path / name).write_bytes(data)
        if not merged:
            first = replace(manifest.shards[0], index_checksum=f"{checksum:016x}")
            replace(manifest, shards=(first, *manifest.shards[1:])).save(path)
        try:
            store = open_store(path)
            for ask in (len, list, lambda s: list(s.failures()), lambda s: s.places(keys), lambda s: s.get_many(keys)):
                with contextlib.suppress(MissingKeys, CorruptRecord):
                    ask(store)
        except StoreDamaged as error:
            assert str(path) in str(error)
            refused += 1
    assert 0 < refused < 80


def test_an_open_shard_that_was_cut(build):
    path = build("s.roi", [f"{i}" for i in range(20)], open_last=True)
    os.truncate(path / "shard-00000.lmdb", 30_000)
    store = open_store(path)
    for use in (lambda: store["1"], lambda: len(store)):
        with pytest.raises(StoreDamaged, match="was cut"):
            use()
