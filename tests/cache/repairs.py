"""A store to damage, and what a repair of it must keep."""

from __future__ import annotations

import pytest

from cache import Failure, StoreWriter, open_store
from cache.repair import repair
from cache.verify import verify

WORDS = {"classes": ["a", "b"]}


def make_store(tmp_path, make):
    """Three sealed shards: records and a failure, a replaced record, and more of both."""
    path = tmp_path / "s ü.roi"
    with StoreWriter(path, "float32", {"x": 1}, WORDS, {"device": "cpu"}) as writer:
        writer.write([make("a"), make("b"), make("c")], [Failure("f", "empty", "nothing")])
        writer.seal()
        writer.write([make("a", salt=1)], on_duplicate="replace")
        writer.seal()
        writer.write([make("d"), make("e")], [Failure("g", "empty", "nothing")])
    return path


def leave_open_shard(store, make):
    """A fourth shard, which a killed writer left."""
    with pytest.raises(RuntimeError), StoreWriter(store, "float32") as writer:
        writer.write([make(f"o{i}") for i in range(4)], [Failure("h", "empty", "nothing")])
        writer.write([make("d", salt=1)], on_duplicate="replace")
        raise RuntimeError
    return store / "shard-00003.lmdb"


def states(path) -> dict[str, bytes | str]:
    opened = open_store(path, verify="always")
    return {key: bytes(opened.record(key)) for key in opened.keys()} | {f.key: f.kind for f in opened.failures()}


def damage(path, offset: int, data: bytes = b"damage") -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def hurt_record(path, key: str) -> None:
    name, offset, length = open_store(path).location(key)
    damage(path / f"{name}.lmdb", offset + length // 2)


def files(path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != "writer.lock"}


def mended(path, lost: list[str], before: dict, code: int | None = None, **options):
    """Repair it; the dry run says the same; what is lost is gone, all else is there, and a second repair is idle."""
    listing = files(path)
    planned = repair(path, dry_run=True, **options)
    assert listing == files(path)
    report = repair(path, **options)
    assert (planned.actions, planned.lost, planned.unnamed) == (report.actions, report.lost, report.unnamed)
    assert report.lost == lost and report.exit_code == ((65 if lost else 0) if code is None else code)
    assert verify(path).problems == [] and states(path) == {k: v for k, v in before.items() if k not in lost}
    assert report.records + report.failures == len(states(path))
    again = repair(path)
    assert again.actions == [] and again.lost == []
    return report
