import pickle

import pytest

from cache import Failure, MissingKeys, StoreMismatch, StoreWriter, open_store
from cache.lookup import Lookup


def test_several_stores_as_one(build, tmp_path, make, same):
    one = build("1.roi", ["a", "b"], failures=[Failure("f", "empty", "m"), Failure("g", "empty", "m")])
    two = build("2.roi", ["b", "c", "g"], failures=[Failure("f", "missing", "m"), Failure("h", "missing", "m")])
    for target in ([one, two], str(tmp_path / "*.roi"), [one, str(tmp_path / "2*"), two]):
        store = open_store(target)
        assert store.paths == [one, two] and len(store.manifests) == 2
        assert sorted(store.keys()) == ["a", "b", "c", "g"] and len(store) == 4
        assert all(same(store[key], make(key)) for key in "abcg")
        assert sorted((f.key, f.kind) for f in store.failures()) == [("f", "empty"), ("h", "missing")]
        assert pickle.loads(pickle.dumps(store)).paths == store.paths


def test_stores_that_do_not_fit_together(build):
    one = build("1.roi", ["a", "b"])
    with pytest.raises(StoreMismatch, match="different records of 'b'"):
        open_store([one, build("2.roi", ["b"], salt=1)])
    with pytest.raises(StoreMismatch, match="dimension 8.*9"):
        open_store([one, build("3.roi", ["z"], d=9)])


def test_stores_that_came_to_contradict_each_other(build, make):
    one, two = build("1.roi", ["a"]), build("2.roi", ["b"])
    store = open_store([one, two])
    with StoreWriter(two, "float32") as writer:
        writer.write([make("a", salt=1)])
    with pytest.raises(StoreMismatch, match="different records of 'a'"):
        store.refresh()


def test_near_keys_are_looked_for_only_when_somebody_looks(build, monkeypatch):
    store = open_store(build("s.roi", ["aaaa", "aaab"], ["aaac"], failures=[Failure("aaad", "empty", "m")]))
    looked, near = [], Lookup._near
    monkeypatch.setattr(Lookup, "_near", lambda self, key: looked.append(key) or near(self, key))
    error = pytest.raises(MissingKeys, store.__getitem__, "aaax").value
    assert not looked
    assert all(f"'{key}'" in str(error) for key in ("aaaa", "aaab", "aaac")) and "aaad" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) and looked == ["aaax"]


def test_places_are_those_that_single_lookups_find(build, make):
    one = build("1.roi", ["a", "b", "c"], ["d"], failures=[Failure("f", "empty", "m"), Failure("e", "empty", "m")])
    two = build("2.roi", ["e", "g"], ["h"], open_last=True, failures=[Failure("f", "empty", "m")])
    with StoreWriter(one, "float32") as writer:
        writer.write([make("b", salt=1), make("f")], [Failure("c", "empty", "m")], on_duplicate="replace")
    keys = [*"abcdefgh", "nowhere", "a"]
    for targets in ([one], [one, two]):
        store = open_store(targets)
        places = store.places(keys).tolist()
        for key, (number, shard, offset) in zip(keys, places, strict=True):
            if key not in store:
                assert (number, shard, offset) == (-1, -1, -1)
                continue
            name, byte, _ = store.location(key)
            assert name == f"shard-{shard:05}" and offset == (-1 if byte is None else byte)
            assert key in open_store(store.paths[number])
        assert store.places([]).shape == (0, 3)
    assert places[0] == places[-1] and places[1][1] == 2 and places[4][0] == 1 and places[7][2] == -1
