"""Against an installed detectron2, with small models of random weights."""

import pickle
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cache import InputNotFound, UsageError
from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.presets import get_preset
from extractor.resize import resize_pillow, short_side_size

C4 = """
MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  MASK_ON: True
  RESNETS: {DEPTH: 50, RES2_OUT_CHANNELS: 16, STEM_OUT_CHANNELS: 8, WIDTH_PER_GROUP: 8}
  RPN: {PRE_NMS_TOPK_TEST: 200, POST_NMS_TOPK_TEST: 40}
  ROI_HEADS: {NAME: Res5ROIHeads, NUM_CLASSES: 5, SCORE_THRESH_TEST: 0.1}
INPUT: {MIN_SIZE_TEST: 100, MAX_SIZE_TEST: 200, FORMAT: RGB}
TEST: {DETECTIONS_PER_IMAGE: 30}
"""

FPN = """
MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  PIXEL_STD: [50.0, 60.0, 70.0]
  BACKBONE: {NAME: build_resnet_fpn_backbone}
  RESNETS:
    {DEPTH: 50, RES2_OUT_CHANNELS: 16, STEM_OUT_CHANNELS: 8, WIDTH_PER_GROUP: 8, OUT_FEATURES: [res2, res3, res4, res5]}
  FPN: {IN_FEATURES: [res2, res3, res4, res5], OUT_CHANNELS: 16}
  ANCHOR_GENERATOR: {SIZES: [[16], [32], [64], [128], [256]], ASPECT_RATIOS: [[0.5, 1.0, 2.0]]}
  RPN: {IN_FEATURES: [p2, p3, p4, p5, p6], PRE_NMS_TOPK_TEST: 100, POST_NMS_TOPK_TEST: 70}
  ROI_HEADS: {NAME: StandardROIHeads, IN_FEATURES: [p2, p3, p4, p5], NUM_CLASSES: 5, SCORE_THRESH_TEST: 0.1}
  ROI_BOX_HEAD: {NAME: FastRCNNConvFCHead, NUM_FC: 2, FC_DIM: 24, POOLER_RESOLUTION: 7}
INPUT: {MIN_SIZE_TEST: 100, MAX_SIZE_TEST: 200}
TEST: {DETECTIONS_PER_IMAGE: 30}
"""


@pytest.fixture(scope="module", params=[C4, FPN], ids=["c4", "fpn"])
def case(request, tmp_path_factory):
    """A configuration file, a checkpoint for it and detectron2's own model."""
    pytest.importorskip("detectron2")
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    folder = tmp_path_factory.mktemp("detectron")
    (folder / "model.yaml").write_text(request.param)
    config = get_cfg()
    config.merge_from_file(str(folder / "model.yaml"))
    config.MODEL.DEVICE = "cpu"
    torch.manual_seed(5)
    model = build_model(config).eval()
    for name, tensor in model.state_dict().items():
        if "cls_score.weight" in name:
            tensor.normal_(0, 0.3)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    (folder / "model.pkl").write_bytes(pickle.dumps({"model": state, "__author__": "test"}))
    return str(folder / "model.yaml"), folder / "model.pkl", model, config


def load(case, query=""):
    return Extractor(get_preset(f"detectron2:{case[0]}{query}"), case[1], "cpu", "float32", DecodePolicy())


def theirs(case, picture):
    _, _, model, config = case
    size = short_side_size(*picture.shape[:2], config.INPUT.MIN_SIZE_TEST, config.INPUT.MAX_SIZE_TEST)
    pixels = resize_pillow(picture if config.INPUT.FORMAT == "RGB" else picture[:, :, ::-1].copy(), size)
    image = torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32).copy())
    with torch.inference_mode():
        return model([{"image": image, "height": picture.shape[0], "width": picture.shape[1]}])[0]["instances"]


def test_detections_are_the_models_own(case, pictures):
    for picture in pictures[:3]:
        found, expected = load(case)([picture])[0], theirs(case, picture)
        assert 0 < len(found) == len(expected)
        np.testing.assert_allclose(found.scores, expected.scores.numpy(), atol=1e-4)
        np.testing.assert_array_equal(found.class_ids, expected.pred_classes.numpy())
        np.testing.assert_allclose(found.boxes, expected.pred_boxes.tensor.numpy(), atol=0.02)


@pytest.mark.parametrize("query", ["?select=max-class&nms=0.7&max=12", "?select=per-class&min=2&max=9&score=0.9"])
def test_the_best_regions_can_be_chosen_otherwise(case, pictures, query):
    extractor = load(case, query)
    rule, regions = extractor.preset.selection, extractor(pictures[:1])[0]
    assert max(rule.min_regions, 1) <= len(regions) <= rule.max_regions
    assert (np.diff(regions.scores) <= 0).all() and regions.features.shape == (len(regions), extractor.dim)


def test_every_layer_can_be_taken(case, pictures):
    boxes = [np.array([[5, 5, 90, 80], [0, 0, 160, 120]], np.float32)]
    pooled = load(case, "?layer=pooled")
    assert pooled(pictures[:1], boxes=boxes)[0].features.shape == (2, pooled.dim)
    if pooled.preset.dim == 16:
        before = load(case, "?layer=fc2&activation=pre")(pictures[:1], boxes=boxes)[0].features
        after = load(case, "?layer=fc2")(pictures[:1], boxes=boxes)[0].features
        assert before.shape == (2, 24) and before.min() < 0
        np.testing.assert_array_equal(np.maximum(before, 0), after)
        assert np.array_equal(load(case)(pictures[:1], boxes=boxes)[0].features, after)


def test_a_record_does_not_depend_on_its_company(case, pictures):
    extractor = load(case, "?select=max-class&max=20")
    alone = [extractor([picture])[0] for picture in pictures[:3]]
    for mine, other in zip(extractor(pictures[:3][::-1])[::-1], alone, strict=True):
        assert np.array_equal(mine.features, other.features) and np.array_equal(mine.boxes, other.boxes)


def test_the_recipe_of_vsr_on_a_small_model(case, pictures):
    if case[3].MODEL.ROI_HEADS.NAME == "Res5ROIHeads":
        pytest.skip("the recipe is for a pyramid")
    recipe = get_preset("vsr-visualbert")
    architecture = replace(recipe.architecture, config=case[0], dim=24, num_classes=5)
    extractor = Extractor(replace(recipe, architecture=architecture), case[1], "cpu", "float32", DecodePolicy())
    for regions in extractor(pictures[:2]):
        assert 10 <= len(regions) <= 100 and regions.features.shape[1] == 24 and regions.features.min() < 0
        assert (np.diff(regions.scores) <= 0).all() and (regions.scores[10:] >= 0.5).all()
        assert (regions.class_ids < 5).all()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?layr=fc1", "layr"),
        ("?layer=fc9", "fc9"),
        ("?layer=fc1&activation=half", "post, pre|fc1"),
        ("?select=all", "max-class"),
        ("?nms=x", "nms"),
        ("?select=per-class&min=5&max=2", "do not fit"),
        ("?min=5", "select"),
    ],
)
def test_wrong_options_are_refused(case, query, words):
    with pytest.raises(UsageError, match=words):
        load(case, query)


@pytest.mark.parametrize(
    ("backbone", "layers"),
    [("build_resnet_fpn_backbone", {"fc2": 24, "fc1": 24, "pooled": 16}), ("build_resnet_backbone", {"pooled": 128})],
)
def test_a_layer_that_is_not_there_is_refused_before_there_is_a_model(monkeypatch, backbone, layers):
    """With what is read of a configuration alone, so that this needs no detectron2."""
    words = SimpleNamespace
    model = words(
        BACKBONE=words(NAME=backbone),
        ROI_BOX_HEAD=words(NUM_FC=2, FC_DIM=24),
        ROI_HEADS=words(NUM_CLASSES=5, NMS_THRESH_TEST=0.5, SCORE_THRESH_TEST=0.05),
        FPN=words(OUT_CHANNELS=16),
        RESNETS=words(RES2_OUT_CHANNELS=16),
        PIXEL_MEAN=[1.0, 2.0, 3.0],
        PIXEL_STD=[1.0, 1.0, 1.0],
        WEIGHTS="",
    )
    config = words(
        MODEL=model,
        INPUT=words(MIN_SIZE_TEST=100, MAX_SIZE_TEST=200, FORMAT="BGR"),
        TEST=words(DETECTIONS_PER_IMAGE=30),
        DATASETS=words(TRAIN=()),
        dump=lambda: "",
    )
    monkeypatch.setattr("extractor.detectron.read_config", lambda path: config)
    assert get_preset("detectron2:x.yaml").architecture.layer == next(iter(layers))
    for layer, dim in layers.items():
        assert get_preset(f"detectron2:x.yaml?layer={layer}").dim == dim
    with pytest.raises(UsageError, match="activation"):
        get_preset("detectron2:x.yaml?layer=pooled&activation=pre")
    for layer in ("fc0", "fc3", "conv1", "", *({"fc1"} - layers.keys())):
        with pytest.raises(UsageError, match=f"layer='{layer}' is not one of {', '.join(layers)}"):
            get_preset(f"detectron2:x.yaml?layer={layer}")


def test_a_configuration_that_is_not_there_is_named(case, tmp_path):
    with pytest.raises(InputNotFound, match="nowhere.yaml"):
        get_preset("detectron2:nowhere.yaml")
    (tmp_path / "bad.yaml").write_text("MODEL: {NO_SUCH_KEY: 1}")
    with pytest.raises(UsageError, match="bad.yaml"):
        get_preset(f"detectron2:{tmp_path / 'bad.yaml'}")


def test_without_detectron2_the_way_to_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "detectron2", None)
    monkeypatch.setitem(sys.modules, "detectron2.config", None)
    with pytest.raises(UsageError, match="install"):
        get_preset("detectron2:any.yaml")
