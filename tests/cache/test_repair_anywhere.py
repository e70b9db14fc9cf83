"""Repairs that are killed at any step, and damage of any kind at any place."""

from __future__ import annotations

import errno
import os
import random
import shutil

import pytest

from cache import StoreDamaged, StoreNotFound, StoreWriter
from cache.manifest import Manifest
from cache.repair import repair
from cache.snapshot import load_index
from cache.verify import digest, verify
from tests.cache.repairs import damage, hurt_record, leave_open_shard, make_store, states


@pytest.fixture
def store(tmp_path, make):
    return make_store(tmp_path, make)


@pytest.fixture
def open_shard(store, make):
    return leave_open_shard(store, make)


# -- kills


def hurt(store) -> None:
    hurt_record(store, "a")
    hurt_record(store, "e")
    (store / "shard-00000.idx").unlink()


@pytest.mark.parametrize(
    "links, stride", [(True, 4), *(pytest.param(links, 1, marks=pytest.mark.slow) for links in (True, False))]
)
def test_killed_anywhere_it_can_be_run_again(store, open_shard, tmp_path, killed_at, monkeypatch, links, stride):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    hurt(store)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    whole = tmp_path / "whole.roi"
    shutil.copytree(store, whole)
    expected = repair(whole)
    left = states(whole)
    step, path = 1, tmp_path / "killed.roi"
    while True:
        shutil.copytree(store, path)
        killed = killed_at(step, lambda: repair(path))
        repair(path)
        assert verify(path).ok and states(path) == left and digest(path) == digest(whole)
        assert not [name for name in os.listdir(path) if name.endswith((".tmp", "-lock", ".lock"))]
        shutil.rmtree(path)
        if not killed:
            break
        step += stride
    assert step > 20 and expected.lost == ["a", "e"]


def test_what_a_killed_seal_left(store, open_shard, tmp_path, killed_at):
    before, step, path = states(store), 1, tmp_path / "killed.roi"
    killed = True
    while killed:
        shutil.copytree(store, path)
        killed = killed_at(step, lambda: close(path))
        assert repair(path).exit_code == 0 and verify(path).ok and states(path) == before
        shutil.rmtree(path)
        step += 3


def close(path) -> None:
    StoreWriter(path, "float32").close()


# -- damage anywhere


def alter(rng: random.Random, store) -> None:
    file = rng.choice(sorted(path for path in store.iterdir() if path.is_file()))
    data = bytearray(file.read_bytes())
    at = rng.randrange(max(1, len(data)))
    what = rng.choice(["flip", "flip", "noise", "zeros", "cut", "gone"])
    if what == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif what in ("noise", "zeros"):
        size = min(len(data) - at, rng.choice([10, 5000, 30_000]))
        data[at : at + size] = rng.randbytes(size) if what == "noise" else bytes(size)
    elif what == "cut":
        del data[at:]
    file.unlink() if what == "gone" else file.write_bytes(data)


def check_damage(tmp_path, store, seeds) -> None:
    """No traceback, no state that was not there, none silently gone, and after that a whole store."""
    before = states(store)
    for seed in seeds:
        rng, path = random.Random(seed), tmp_path / "hurt.roi"
        shutil.copytree(store, path)
        for _ in range(rng.choice([1, 1, 2, 4])):
            alter(rng, path)
        try:
            report = repair(path)
        except (StoreNotFound, StoreDamaged) as error:
            assert "there is no store" in str(error) or "neither" in str(error), seed
        else:
            assert verify(path).problems == [] and repair(path).actions == [], seed
            left = states(path)
            # without the manifest nobody knows of a shard that is gone
            told = report.unnamed or report.uncounted or "from the shards that are there" in "".join(report.actions)
            assert set(before) - set(left) <= set(report.lost) or told, seed
            assert not set(left) - set(before) and (report.records + report.failures) == len(left), seed
            changed = {key for key in left if left[key] != before[key]}
            assert not changed or told, seed
        shutil.rmtree(path)


def test_damage_anywhere(tmp_path, store, open_shard):
    check_damage(tmp_path, store, range(60))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_damage_anywhere_often(tmp_path, store, open_shard):
    check_damage(tmp_path, store, range(60, 2000))


def test_one_damaged_record_costs_no_other(store):
    """Every byte of it, in steps: the record is lost, or the byte does not matter; the others stay."""
    before, path = states(store), store / "shard-00000.lmdb"
    entries = dict(load_index(store, Manifest.load(store).shards[0]).states())
    for offset in range(entries[b"b"].offset, entries[b"b"].offset + entries[b"b"].length, 400):
        copied = store.with_name("copy.roi")
        shutil.copytree(store, copied)
        damage(copied / path.name, offset, bytes([path.read_bytes()[offset] ^ 255]))
        assert repair(copied).lost == ["b"] and states(copied) == {k: v for k, v in before.items() if k != "b"}
        shutil.rmtree(copied)
