from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest
import xxhash

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


@pytest.mark.parametrize("change", [
    {"number": "../../../etc/passwd"}, {"number": -1}, {"number": 1.5}, {"number": True}, {"state": "torn"},
    {"bytes": "1"}, {"bytes": None}, {"index_bytes": -5}, {"records": 1 << 70}, {"checksum": "../x"},
    {"index_checksum": None}, {"provenance": ["a"]}, {"provenance": 7}, {"number": 1},
])  # fmt: skip
def test_shards_that_no_writer_would_list(change):
    shard = Shard(0, "sealed", (), 1, 0, 4096, "0" * 16, 100, "0" * 16)
    two = Manifest("float16", 4, {}, {}, (shard, replace(shard, number=1)))
    assert Manifest.from_bytes(two.to_bytes(), "here") == two
    values = json.loads(two.to_bytes())
    values["shards"][0] |= change
    with pytest.raises(StoreDamaged, match="here"):
        Manifest.from_bytes(signed(values), "here")


@pytest.mark.parametrize("change", [
    {"feature_dtype": "int8"}, {"dim": -1}, {"dim": "4"}, {"fingerprint": 3}, {"vocabularies": []}, {"shards": None},
    {"vocabularies": {"classes": "abc"}}, {"vocabularies": {"classes": [1]}}, {"format": []}, {"shards": [3]},
])  # fmt: skip
def test_manifests_that_no_writer_would_write(change):
    with pytest.raises(StoreDamaged, match="here"):
        Manifest.from_bytes(signed({**json.loads(Manifest("float16").to_bytes()), **change}), "here")


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"format": 1', b"\xff\xfe", b"[" * 100_000])
def test_text_that_is_no_manifest(text):
    head = b'{\n "checksum": "'
    body = head + b"0" * 16 + b'"' + text
    with pytest.raises(StoreDamaged, match="here"):
        Manifest.from_bytes(body.replace(b"0" * 16, xxhash.xxh3_64_hexdigest(body).encode(), 1), "here")


def signed(values):
    """The bytes of a manifest with the right checksum."""
    body = json.dumps({**values, "checksum": "0" * 16}, indent=1).encode() + b"\n"
    return body.replace(b"0" * 16, xxhash.xxh3_64_hexdigest(body).encode(), 1)
