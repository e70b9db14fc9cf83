"""Causes of pairs that a real detector makes: the demo model on drawn scenes, with one thing changed."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from cache.causes import causes
from cache.compare import compare
from cache.contents import HeldContents
from extractor.configs import PerClassNMS
from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.presets import DEMO
from extractor.scenes import make_scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
COUNT = 14


@pytest.fixture(scope="module")
def scenes():
    return [make_scene(5, index)[0] for index in range(COUNT)]


@pytest.fixture(scope="module")
def extract(scenes):
    def extract(weights=None, precision="float32", selection=DEMO.selection, boxes=None, words=True, **preprocess):
        preset = replace(DEMO, preprocess=replace(DEMO.preprocess, **preprocess), selection=selection)
        records = Extractor(preset, weights, "cpu", precision, DecodePolicy())(scenes, boxes)
        names = {"classes": preset.classes, "attributes": preset.attributes} if words else {}
        return HeldContents("held", {record.key: record for record in records}, names)

    return extract


@pytest.fixture(scope="module")
def plain(extract):
    return extract()


@pytest.fixture(scope="module")
def random_weights(tmp_path_factory):
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(1)
    state = {
        name: torch.randn(tensor.shape, generator=generator) * tensor.std() if tensor.ndim > 1 else tensor
        for name, tensor in load_file(str(DEMO.weights_file)).items()
    }
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_file(state, str(path))
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"equal"}),
        ({"channels": "rgb"}, {"channel_order"}),
        ({"short_side": 192, "long_side": 320}, {"resize_rule"}),
        ({"short_side": 341, "long_side": 569}, {"resize_rule"}),
        ({"resize": "opencv"}, {"arithmetic"}),
        ({"precision": "bfloat16"}, {"arithmetic"}),
        ({"selection": PerClassNMS(max_regions=36)}, {"regression", "selection"}),
        ({"selection": replace(DEMO.selection, max_regions=6, min_regions=0)}, {"selection"}),
    ],
)
def test_cause_of_what_a_detector_changed(extract, plain, changes, expected):
    assert {cause.name for cause in causes(compare(plain, extract(**changes)))} == expected


def test_other_weights(extract, plain, random_weights):
    assert [cause.name for cause in causes(compare(plain, extract(weights=random_weights)))] == ["other_weights"]


def test_its_own_boxes_given(extract, plain, scenes):
    boxes = [regions.boxes for regions in plain.find([str(i) for i in range(len(scenes))])]
    assert [cause.name for cause in causes(compare(plain, extract(boxes=boxes)))] == ["pooled_boxes"]
