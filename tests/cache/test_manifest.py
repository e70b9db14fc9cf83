from __future__ import annotations

import dataclasses
import json

import pytest

from cache import StoreDamaged, StoreNotFound, UsageError
from cache.manifest import FILE, Manifest, Shard, as_json, signature

MANIFEST = Manifest(
    feature_dtype="float16",
    dim=2048,
    fingerprint={"weights": "abc", "longest": 1000, "nms": 0.5, "boxes": None, "swap": True},
    vocabularies={"classes": ["a", "b\u00e9"], "attributes": []},
    shards=(
        Shard(0, "sealed", ({"device": "cpu"},), 3, 1, 4096, "0" * 16, 64, "f" * 16),
        Shard(1, provenance=({"device": "cpu"}, {"device": "cuda"})),
    ),
)


def test_round_trip(tmp_path):
    MANIFEST.save(tmp_path)
    assert Manifest.load(tmp_path) == MANIFEST
    assert [p.name for p in tmp_path.iterdir()] == [FILE]
    assert json.loads((tmp_path / FILE).read_text())["dim"] == 2048


def test_shards():
    assert [s.number for s in MANIFEST.sealed] == [0] and [s.number for s in MANIFEST.open] == [1]
    assert MANIFEST.shards[0].file == "shard-00000.lmdb" and MANIFEST.shards[1].index_file == "shard-00001.idx"
    assert [s.number for s in MANIFEST.with_shard(Shard(0)).open] == [0, 1]
    assert MANIFEST.only({1}).shards == MANIFEST.shards[1:]


def test_every_flip_and_every_cut_is_found(tmp_path):
    data = MANIFEST.to_bytes()
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 1 << position % 8
        for damaged in (bytes(altered), data[:position]):
            with pytest.raises(StoreDamaged, match="checksum"):
                Manifest.from_bytes(damaged, tmp_path / FILE)
    with pytest.raises(StoreDamaged):
        Manifest.from_bytes(data + b"\n", tmp_path / FILE)


def test_another_major_format_is_refused_by_name(tmp_path):
    dataclasses.replace(MANIFEST, format=2).save(tmp_path)
    with pytest.raises(StoreDamaged, match="format is 2"):
        Manifest.load(tmp_path)


def test_what_a_later_minor_version_added_is_ignored(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Later(Manifest):
        invention: str = "x"

    Later(**{f.name: getattr(MANIFEST, f.name) for f in dataclasses.fields(MANIFEST)}).save(tmp_path)
    assert "invention" in (tmp_path / FILE).read_text()
    assert Manifest.load(tmp_path) == MANIFEST


def test_no_store(tmp_path):
    with pytest.raises(StoreNotFound, match=str(tmp_path)):
        Manifest.load(tmp_path)
    assert signature(tmp_path) is None
    (tmp_path / "shard-00000.lmdb").write_bytes(b"")
    with pytest.raises(StoreDamaged, match="manifest is missing"):
        Manifest.load(tmp_path)


def test_a_directory_in_its_place(tmp_path):
    (tmp_path / FILE).mkdir()
    with pytest.raises(StoreDamaged, match="is a directory"):
        Manifest.load(tmp_path)


def test_the_signature_changes_with_every_save(tmp_path):
    seen = set()
    for _ in range(5):
        MANIFEST.save(tmp_path)
        seen.add(signature(tmp_path))
    assert len(seen) == 5


def test_what_cannot_be_stored_is_refused():
    assert as_json("x", {"a": (1, (2,)), 3: None}) == {"a": [1, [2]], "3": None}
    for wrong in ({"a": {1}}, float("nan"), {"a": [float("inf")]}, {(1, 2): 3}):
        with pytest.raises(UsageError, match="the x cannot be stored as JSON"):
            as_json("x", wrong)
