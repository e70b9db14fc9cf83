from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cache import StoreDamaged
from cache import index as module
from cache.index import Entry, Index, hash_keys
from cache.states import FAILURE, REPLACED, overrides


def entry(shard=0, place=0, flags=0) -> Entry:
    return Entry(shard, 4096 * place + 16, 2048, 2**64 - 1 - place, flags)


def lookup(index: Index, keys: list[bytes]) -> dict[bytes, Entry]:
    return {keys[place]: found for place, found in index.find(keys, hash_keys(keys))}


@pytest.fixture
def saved(tmp_path):
    states = [(f"dir/key {i}".encode(), entry(0, i, FAILURE if i % 5 == 0 else 0)) for i in range(6)]
    path = tmp_path / "x.idx"
    Index.build(states).save(path)
    return path, states


def test_round_trip(saved):
    path, states = saved
    index = Index.open(path)
    keys = [key for key, _ in states]
    assert lookup(index, [*keys, b"other", b""]) == dict(states)
    assert list(index.states()) == states
    assert (len(index), index.records, index.failures) == (6, 4, 2)
    assert Index.open(path, check=False).checksum == index.checksum != 0


def test_an_empty_index(tmp_path):
    Index.build([], {3: 2**64 - 1}).save(tmp_path / "x")
    index = Index.open(tmp_path / "x")
    assert lookup(index, [b"a"]) == {} and index.covers == {3: 2**64 - 1} and len(Index.merge([])) == 0


def test_every_flip_and_cut_is_found(saved):
    path, states = saved
    data = path.read_bytes()
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 1 << position % 8
        path.write_bytes(altered)
        with pytest.raises(StoreDamaged, match=str(path)):
            Index.open(path)
    for size in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(StoreDamaged, match=str(path)):
            Index.open(path, check=False)
    path.write_bytes(data + b"\0")
    with pytest.raises(StoreDamaged, match="header promises"):
        Index.open(path, check=False)
    path.unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        Index.open(path)


def test_a_large_index_is_checked_when_it_is_to_tell_what_it_lacks(saved, monkeypatch):
    path, states = saved
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the last key of the heap
    path.write_bytes(data)
    assert len(Index.open(path, check=False, put_off=True)) == 6
    with pytest.raises(StoreDamaged, match="checksum"):
        Index.open(path, put_off=True)
    monkeypatch.setattr(module, "_LARGE", 0)
    index = Index.open(path, put_off=True)
    keys = [key for key, _ in states]
    assert lookup(index, keys[:5]) == dict(states[:5])  # what is found proves itself
    for ask in (lambda: lookup(index, keys), lambda: list(index.states()), lambda: index.records):
        with pytest.raises(StoreDamaged, match=f"{path}.*checksum"):
            ask()
    data[-1] ^= 1
    path.write_bytes(data)
    index = Index.open(path, put_off=True)
    assert lookup(index, [*keys, b"other"]) == dict(states) and index.records == 4


def test_keys_with_one_hash_are_told_apart(monkeypatch, tmp_path):
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda key: len(key))
    states = [(key, entry(0, place)) for place, key in enumerate([b"aa", b"bb", b"c", b"dd", b"eee"])]
    Index.build(states).save(tmp_path / "x")
    index = Index.open(tmp_path / "x")
    assert lookup(index, [b"dd", b"zz", b"aa", b"c", b"bb", b"yyyy", b"eee", b"xxx"]) == dict(states)


KEYS = st.sampled_from([b"a", b"b", b"c", b"dd", b"ee"])
FLAGS = st.sampled_from([0, FAILURE, REPLACED, FAILURE | REPLACED])


@given(st.lists(st.dictionaries(KEYS, FLAGS), max_size=5), st.integers(0, 5), st.booleans())
@settings(max_examples=120, deadline=None)
def test_merging_is_the_state_rule_key_by_key(shards, first, collide):
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(xxhash, "xxh3_64_intdigest", lambda key: len(key))
        indexes = [
            Index.build([(key, entry(number, place, flags)) for place, (key, flags) in enumerate(states.items())])
            for number, states in enumerate(shards)
        ]
        expected: dict[bytes, Entry] = {}
        for number, states in enumerate(shards):
            for place, (key, flags) in enumerate(states.items()):
                if key not in expected or overrides(expected[key].flags, flags):
                    expected[key] = entry(number, place, flags)
        merged = Index.merge(indexes)
        assert dict(merged.states()) == expected and len(merged) == len(expected)
        assert lookup(merged, [b"a", b"b", b"c", b"dd", b"ee", b"ff"]) == expected
        in_two_steps = Index.merge([Index.merge(indexes[:first]), *indexes[first:]])
        assert list(in_two_steps.states()) == list(merged.states())


def test_a_merged_index_knows_what_it_covers(tmp_path):
    one, two = Index.build([(b"a", entry(0))], {0: 7}), Index.build([(b"b", entry(4))], {4: 9})
    Index.merge([one, two]).save(tmp_path / module.FILE)
    assert Index.open(tmp_path / module.FILE).covers == {0: 7, 4: 9}


def test_lookups_need_no_float(tmp_path):
    """Hashes above 2**63 must not be compared as floats."""
    keys = [b"%d" % i for i in range(2000)]
    index = Index.build([(key, entry(0, place)) for place, key in enumerate(keys)])
    assert lookup(index, keys) == {key: entry(0, place) for place, key in enumerate(keys)}
    assert hash_keys([]).dtype == np.uint64
