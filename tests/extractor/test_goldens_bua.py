"""Full-size runs of MILVLG's detectors from a checkpoint file to records, against what theirs put out."""

import ast
import importlib.util

import numpy as np
import pytest
import torch

from extractor.bua_caffe import ANCHORS
from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.presets import get_preset

pytestmark = pytest.mark.slow
CAFFE = {"class_ids": "info_objects_id", "class_probs": "info_objects_conf"}
CAFFE |= {"attr_ids": "info_attrs_id", "attr_probs": "info_attrs_conf"}


@pytest.fixture(scope="module")
def checkpoint(golden, tmp_path_factory):
    """Writes a checkpoint as it was published, once."""
    spec = importlib.util.spec_from_file_location("rule", golden / "weights_rule_bua.py")
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    folder, made = tmp_path_factory.mktemp("checkpoints"), {}

    def write(network, anchors=True):
        path = folder / f"{network}{anchors}.pth"
        if path not in made:
            state = {}
            for line in (golden / f"{network}_state_dict.txt").read_text().splitlines():
                name, shape = line.split(maxsplit=1)
                if not rule.skip(name):
                    mode = "caffe" if "caffe" in network else "d2"
                    state[name] = torch.from_numpy(rule.make(name, ast.literal_eval(shape), mode))
            if anchors and "caffe" in network:
                state[ANCHORS] = torch.from_numpy(rule.CAFFE_ANCHORS)
            torch.save({"model": state}, path)
            made[path] = True
        return path

    yield write
    for path in made:
        path.unlink()


def load(preset, weights):
    return Extractor(get_preset(preset), weights, "cpu", "float32", DecodePolicy())


def assert_same_rows(found, stored, columns, order=None):
    """Every region is the stored one, in the stored order, or in that of `order` (rows of the stored ones)."""
    order = np.arange(len(stored["bbox"])) if order is None else order
    np.testing.assert_allclose(found.boxes, stored["bbox"][order], atol=0.02)
    np.testing.assert_allclose(found.features, stored["x"][order], rtol=1e-3, atol=1e-4)
    for ours, theirs in columns.items():
        value = getattr(found, ours)
        compare = np.testing.assert_array_equal if ours.endswith("ids") else np.testing.assert_allclose
        compare(value, stored[theirs][order], **({} if ours.endswith("ids") else {"atol": 1e-4}))


@pytest.mark.parametrize("image", ["syn_1200x300", "syn_480x640"])
def test_caffe_detections_and_given_boxes(golden, checkpoint, image):
    path, weights = golden / "images" / f"{image}.png", checkpoint("bua_caffe_r101")
    given = np.load(golden / "bua_caffe" / f"{image}__bbox_feats.npz")
    free, described = load("bua-r101-10-100", weights)([path, path], boxes=[None, given["given_bbox"]])
    stored = np.load(golden / "bua_caffe" / f"{image}__roi_feats_10-100.npz")
    assert_same_rows(free, stored, CAFFE)
    assert_same_rows(described, given, CAFFE)
    (fixed,) = load("bua-r101-36", weights)([path])
    assert_same_rows(fixed, np.load(golden / "bua_caffe" / f"{image}__roi_feats_36.npz"), CAFFE)


def test_a_checkpoint_without_anchors_gets_the_right_ones(golden, checkpoint):
    path, weights = golden / "images" / "syn_1200x300.png", checkpoint("bua_caffe_r101", anchors=False)
    extractor = load("bua-r101-10-100", weights)
    (found,) = extractor([path])
    assert_same_rows(found, np.load(golden / "bua_caffe" / "syn_1200x300__roi_feats_10-100.npz"), CAFFE)
    fault = np.load(golden / "bua_caffe" / "fault_missing_anchors__syn_1200x300__roi_feats_10-100.npz")
    near = np.abs(found.boxes[:, None] - fault["bbox"][None]).max(axis=2).min(axis=1) < 1
    assert near.mean() < 0.1
    (extractor._network,) = extractor._network.known_faults().values()
    (found,) = extractor([path])
    assert_same_rows(found, fault, CAFFE)


@pytest.mark.parametrize(
    ("preset", "image", "network"),
    [
        ("bua-d2-r101", "syn_1200x300", "r101"),
        ("bua-d2-r101", "syn_480x640", "r101"),
        ("bua-d2-x152", "syn_1200x300", "x152"),
    ],
)
def test_detectron2_detections_and_given_boxes(golden, checkpoint, preset, image, network):
    path, extractor = golden / "images" / f"{image}.png", load(preset, checkpoint(f"bua_d2_{network}"))
    stored = np.load(golden / "bua_d2" / f"{image}__{network}_roi_feats.npz")
    (found,) = extractor([path])
    # equal scores, which the first rows of syn_480x640 have, may come in any order
    distance = np.abs(found.boxes[:, None] - stored["bbox"][None]).max(axis=2)
    distance += 1e3 * (found.class_ids[:, None] != stored["objects"][None])
    order = distance.argmin(axis=1)
    ties = np.flatnonzero(order != np.arange(len(order)))
    assert sorted(order) == list(range(len(order))) and (stored["cls_prob_top5"][ties, 0] > 1 - 1e-5).all()
    assert_same_rows(found, stored, {"class_ids": "objects"}, order)
    np.testing.assert_array_equal(found.attr_ids, stored["attr_prob_top3_id"][order, 0])
    np.testing.assert_allclose(found.attr_probs, stored["attr_prob_top3"][order, 0], atol=1e-4)
    np.testing.assert_array_equal(found.scores, found.class_probs)
    given = golden / "bua_d2" / f"{image}__{network}_bbox_feats.npz"
    if given.exists():
        stored = np.load(given)
        (found,) = extractor([path], boxes=[stored["given_bbox"]])
        assert_same_rows(found, stored, {})
        foreground = stored["objects"] < 1600  # where the original says background, a class is the best of the others
        np.testing.assert_array_equal(found.class_ids[foreground], stored["objects"][foreground])
