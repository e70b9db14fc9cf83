from __future__ import annotations

import os

import pytest

from cache import Failure, StoreWriter, open_store
from cache.diagnosis import Diagnosis
from cache.manifest import Manifest


@pytest.fixture
def store(tmp_path, make):
    """Of each key the states in three shards: an old record, its replacement, and one that does not count."""
    path = tmp_path / "s.roi"
    with StoreWriter(path, "float32", {"x": 1}, {"classes": ["a"]}) as writer:
        writer.write([make("a"), make("b")], [Failure("f", "empty", "m")])
        writer.seal()
        writer.write([make("a", salt=1), make("f")], on_duplicate="replace")
        writer.seal()
        writer.write([make("c")])
    return path


def diagnose(path) -> Diagnosis:
    listing = {name: (path / name).read_bytes() for name in os.listdir(path) if (path / name).is_file()}
    found = Diagnosis(path, lambda done, total: None)
    assert listing == {name: (path / name).read_bytes() for name in os.listdir(path) if (path / name).is_file()}
    return found


def hurt(path, key: str) -> None:
    name, offset, length = open_store(path).location(key)
    with open(path / f"{name}.lmdb", "r+b") as file:
        file.seek(offset + length - 8)
        file.write(b"damaged!")


def test_a_sound_store(store):
    found = diagnose(store)
    assert found.trusted and found.manifest == Manifest.load(store) and found.features == ("float32", 8)
    assert [(p.intact, p.listed, p.salvage.whole, len(p.salvage.states)) for p in found.parts] == [
        (True, True, True, 3), (True, True, True, 2), (True, True, True, 1)
    ]  # fmt: skip
    assert found.lost == [] and found.strangers == set() and found.merged is not None


def test_progress_covers_all_bytes(store):
    seen = []
    Diagnosis(store, lambda *progress: seen.append(progress))
    assert len(seen) == 3 and seen[-1][0] == seen[-1][1] == sum(p.stat().st_size for p in store.glob("*.lmdb"))


@pytest.mark.parametrize("key, kept", [("a", [2, 1, 1]), ("f", [2, 1, 1]), ("b", [2, 2, 1]), ("c", [3, 2, 0])])
def test_with_the_state_that_holds_all_earlier_ones_go(store, key, kept):
    hurt(store, key)
    found = diagnose(store)
    assert found.lost == [key.encode()] and [len(p.salvage.states) for p in found.parts] == kept


def test_a_state_that_does_not_hold_is_no_loss(store, make):
    hurt(store, "b")
    with StoreWriter(store, "float32") as writer:
        writer.write([make("b")], on_duplicate="replace")
    found = diagnose(store)
    assert found.lost == [] and [len(p.salvage.states) for p in found.parts] == [2, 2, 1, 1]


def test_what_a_damaged_manifest_still_says(store):
    file = store / "manifest.json"
    sound, text = Manifest.load(store), file.read_text()
    file.write_text(text.replace('"x": 1', '"x": 2'))
    found = diagnose(store)
    assert not found.trusted and found.manifest.fingerprint == {"x": 2} and "checksum" in found.why
    file.write_text(text.replace('"state": "sealed"', '"state": "sealex"'))
    found = diagnose(store)
    assert not found.trusted and found.manifest.fingerprint == {"x": 1} and found.manifest.shards == ()
    assert found.manifest.vocabularies == sound.vocabularies and len(found.parts) == 3
    file.write_text(text[:-3])
    found = diagnose(store)
    assert found.manifest is None and found.features == ("float32", 8) and found.lost == []
