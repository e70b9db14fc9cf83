"""Examples joined with a store: keys found in their several forms, and stores that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cache import MissingKeys, Regions, StoreMismatch, StoreWriter, UsageError, open_store
from consumers.data import TaskData, check_store, resolve_keys
from consumers.tasks import Example


@pytest.fixture
def config(shrunk):
    return replace(shrunk("uniter"), regions=6)


def one(key, *forms, text="a dog"):
    return Example(key, text, ((key, *forms),))


def test_keys_are_found_in_the_first_form_that_the_store_has(feature_store):
    keys, forms = resolve_keys(feature_store, [("1", "2"), ("x.jpg", "y", "3"), ("nothing", "4")])
    assert keys == ["1", "3", "4"]
    assert forms == {0: 1, 1: 1, 2: 1}


def test_all_missing_pictures_are_named_in_their_usual_form(feature_store):
    with pytest.raises(MissingKeys, match="other forms of the keys were tried") as caught:
        resolve_keys(feature_store, [("1",), ("x", "y"), ("z",)])
    assert caught.value.keys == ["x", "z"]


def test_shuffled_pictures_have_the_regions_of_others(feature_store, words, config):
    some = [one(str(n)) for n in range(7)]
    plain, shuffled = (TaskData(some, feature_store, config, words(config), 12, shuffled=on) for on in (False, True))
    assert sorted(shuffled.keys) == plain.keys
    assert not any(a == b for a, b in zip(shuffled.keys, plain.keys, strict=True))
    assert torch.equal(shuffled.text([2])[0], plain.text([2])[0])
    there = plain.keys.index(shuffled.keys[2])
    assert torch.equal(shuffled.regions([2])[0], plain.regions([there])[0])
    with pytest.raises(UsageError, match="one picture alone cannot be exchanged"):
        TaskData(some[:1], feature_store, config, words(config), 12, shuffled=True)


def test_inputs_are_what_the_store_and_the_texts_say(feature_store, words, config):
    some = [Example("a", "a dog", (("3",), ("5",))), Example("b", "w " * 30, (("5",), ("3",)))]
    data = TaskData(some, feature_store, config, words(config), 12)
    assert data.keys == ["3", "5"] and data.images.tolist() == [[0, 1], [1, 0]] and data.notes == []
    ids, mask, features, locations, region_mask = data.inputs([0, 1], [1, 0])
    assert ids.shape == (2, 12) and mask.sum(1).tolist() == [4, 12]
    assert features.shape == (2, 7, 16) and locations.shape == (2, 7, 5) and region_mask.all()
    for row, key in enumerate(("5", "3")):
        stored = feature_store[key].features
        assert np.array_equal(features[row, 1:].numpy(), stored)  # after the mean region
        torch.testing.assert_close(features[row, 0], torch.from_numpy(stored.mean(0)))


def test_other_pictures_of_the_store_come_behind(feature_store, words, config):
    data = TaskData([one("7")], feature_store, config, words(config), 12, others=100)
    assert data.keys[0] == "7" and sorted(data.keys, key=int) == [str(n) for n in range(40)]


def stored(path, features, regions=6):
    with StoreWriter(path, "float32") as writer:
        boxes = np.zeros((len(features), 4), np.float32)
        writer.write([Regions("1", 9, 9, boxes, features.astype(np.float32))])
    return open_store(path)


def test_features_of_another_dimension_are_refused(tmp_path, config):
    store = stored(tmp_path / "s.roi", np.ones((6, 8)))
    with pytest.raises(StoreMismatch, match="uniter reads features of dimension 16, but '1' in .*s.roi has 8"):
        check_store(store, ["1"], config)


def test_normalised_features_are_refused_where_raw_ones_are_read(tmp_path, config):
    unit = np.random.default_rng(0).random((6, 16))
    store = stored(tmp_path / "s.roi", unit / np.linalg.norm(unit, axis=1, keepdims=True))
    with pytest.raises(StoreMismatch, match="have been divided by their length"):
        check_store(store, ["1"], replace(config, normalize=False))
    assert check_store(store, ["1"], replace(config, normalize=True)) == []


def test_another_number_of_regions_is_noted(tmp_path, config):
    store = stored(tmp_path / "s.roi", np.random.default_rng(0).random((6, 16)))
    assert "at most 6 regions, and uniter expects 36" in check_store(store, ["1"], replace(config, regions=36))[0]
    assert "up to 6 regions, of which uniter reads 4" in check_store(store, ["1"], replace(config, regions=4))[0]


def test_a_picture_without_regions_needs_a_mean_region(tmp_path, config):
    store = stored(tmp_path / "s.roi", np.zeros((0, 16)))
    with pytest.raises(StoreMismatch, match="'1' in .* has no regions"):
        check_store(store, ["1"], replace(config, global_region="none"))
    assert check_store(store, ["1"], config) != []
