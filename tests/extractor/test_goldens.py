"""Full-size runs from a checkpoint file to records, against what the published systems put out for the same weights."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.presets import get_preset

SLOW = pytest.param("syn_480x640", marks=pytest.mark.slow)


def shapes(path):
    for line in path.read_text().splitlines():
        name, shape = line.split(maxsplit=1)
        yield name, tuple(int(side) for side in shape.strip("(), ").split(","))


@pytest.fixture(scope="module")
def checkpoint(golden, golden_weight, tmp_path_factory):
    """Writes a checkpoint as it was published, once."""
    folder, made = tmp_path_factory.mktemp("checkpoints"), {}

    def write(network):
        if network not in made:
            state = {
                name: golden_weight(name, shape)
                for name, shape in shapes(golden / f"{network}_state_dict.txt")
                if "cell_anchors" not in name
            }
            made[network] = folder / network
            if network == "r101c4":
                made[network].write_bytes(pickle.dumps({"model": state, "__author__": "golden"}, 2))
            else:
                torch.save({"model": {f"module.{n}": torch.from_numpy(a) for n, a in state.items()}}, made[network])
        return made[network]

    yield write
    for path in made.values():
        path.unlink()


def load(preset, weights):
    return Extractor(preset, weights, "cpu", "float32", DecodePolicy())


def assert_same_regions(found, stored_boxes, stored_features, at_least=0.97):
    """So many regions have the box of a stored one, to 0.02 px and one to one, and every number of their features is
    within the tolerance; returns the rows of both."""
    distance = np.abs(found.boxes[:, None] - stored_boxes[None]).max(axis=2)
    rows = np.flatnonzero(distance.min(axis=1) < 0.02)
    partners = distance[rows].argmin(axis=1)
    assert len(found) == len(stored_boxes) and len(set(partners)) == len(rows) >= at_least * len(stored_boxes)
    np.testing.assert_allclose(found.features[rows], stored_features[partners], rtol=1e-3, atol=1e-4)
    return rows, partners


@pytest.mark.parametrize("image", ["syn_1200x300", SLOW])
def test_the_c4_network_and_given_boxes(golden, checkpoint, image):
    extractor = load(get_preset("vg-r101"), checkpoint("r101c4"))
    stored = np.load(golden / "r101c4" / f"{image}.npz")
    path = golden / "images" / f"{image}.png"
    found, given = extractor([path, path], boxes=[None, stored["given_boxes"]])
    rows, partners = assert_same_regions(found, stored["boxes"], stored["features"])
    np.testing.assert_array_equal(found.class_ids[rows], stored["obj_id"][partners])
    np.testing.assert_array_equal(found.attr_ids[rows], stored["attr_id"][partners])
    np.testing.assert_allclose(found.class_probs[rows], stored["obj_conf"][partners], atol=1e-4)
    np.testing.assert_allclose(found.attr_probs[rows], stored["attr_conf"][partners], atol=1e-4)
    np.testing.assert_array_equal(found.scores, found.class_probs)
    np.testing.assert_array_equal(given.boxes, stored["given_boxes"])
    np.testing.assert_allclose(given.features, stored["given_features"], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(given.class_ids, stored["given_obj_id"])
    np.testing.assert_array_equal(given.attr_ids, stored["given_attr_id"])
    np.testing.assert_allclose(given.class_probs, stored["given_obj_conf"], atol=1e-4)
    np.testing.assert_allclose(given.attr_probs, stored["given_attr_conf"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("image", ["syn_1200x300", "syn_480x640"])
def test_the_pyramid_network_as_iglue_ran_it(golden, checkpoint, image):
    extractor = load(get_preset("vg-x101-iglue"), checkpoint("x101fpn"))
    check_pyramid(extractor, golden / "images" / f"{image}.png", np.load(golden / "x101fpn" / f"{image}.npz"))


@pytest.mark.slow
def test_the_pyramid_network_with_the_right_channels(golden, checkpoint):
    iglue = get_preset("vg-x101-iglue")
    upstream = replace(iglue, preprocess=get_preset("vg-x101").preprocess)
    stored = np.load(golden / "x101fpn" / "syn_1200x300__upstream_bgr_order.npz")
    check_pyramid(load(upstream, checkpoint("x101fpn")), golden / "images" / "syn_1200x300.png", stored)


@pytest.mark.slow
def test_the_grid_is_the_last_map_of_the_published_network(golden, checkpoint):
    preset = replace(get_preset("vg-x101-grid"), preprocess=get_preset("vg-x101-iglue").preprocess)
    found = load(preset, checkpoint("x101fpn"))([golden / "images" / "syn_1200x300.png"])[0]
    stored = np.load(golden / "x101fpn" / "syn_1200x300.npz")
    _, channels, rows, columns = stored["C5_shape"]
    cells = found.features.reshape(rows, columns, channels).transpose(2, 0, 1).ravel()
    sampled = cells[np.linspace(0, cells.size - 1, len(stored["C5_sample"])).astype(np.int64)]
    np.testing.assert_allclose(sampled, stored["C5_sample"], rtol=1e-3, atol=1e-4)


def check_pyramid(extractor, path, stored):
    found = extractor([path])[0]
    rows, partners = assert_same_regions(found, stored["bbox"], stored["features"])
    np.testing.assert_array_equal(found.class_ids[rows], stored["objects"][partners])
    np.testing.assert_allclose(found.class_probs[rows], stored["cls_prob_top5"][partners, 0], atol=1e-4)
    ranks = stored["max_conf_all"][stored["keep_ids"]]
    np.testing.assert_allclose(found.scores[rows], ranks[partners], atol=1e-4)
    assert (np.diff(found.scores) <= 0).all() and found.attr_ids is None
