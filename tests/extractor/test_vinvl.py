from types import SimpleNamespace

import numpy as np
import pytest
import torch

from extractor.boxes import inclusive_cells
from extractor.detections import Detections
from extractor.preprocess import Frame
from extractor.selection import select
from extractor.tensor_names import canonical_names
from extractor.vinvl import AttributePredictor, VinVLDetector, truncated_size
from extractor.vinvl_presets import VINVL_X152, VinVLConfig, VinVLFilter


@pytest.mark.parametrize("case", ["clustered120", "few6", "near_identical40"])
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("threshold", [0.2, 0.4, 0.9])
def test_selection_equals_the_reference_implementation(golden, case, kind, threshold):
    stored = np.load(golden / "vinvl" / f"ops_select_{case}.npz")
    rois = torch.from_numpy(stored["boxes"])
    scores = torch.from_numpy(stored["cls_logits"]).softmax(dim=1)[:, 1:]
    found = Detections(rois, rois, rois, *reversed(scores.max(dim=1)), scores)
    width, height = stored["image_wh"].tolist()
    rule = VinVLFilter(kind, 0.3 if kind == 1 else 0.5, threshold)
    chosen = select(rule, found, Frame(width, height, (height, width), (1.0, 1.0)))
    theirs = {name: stored[f"f{kind}_ign_thr{threshold}/{name}"] for name in ("keep_ids", "labels", "boxes", "scores")}
    np.testing.assert_array_equal(chosen.rows.numpy(), theirs["keep_ids"])
    np.testing.assert_array_equal(chosen.classes.numpy() + 1, theirs["labels"])
    np.testing.assert_array_equal(chosen.boxes.numpy(), theirs["boxes"])
    np.testing.assert_allclose(chosen.scores.numpy(), theirs["scores"], atol=1e-6)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((480, 640), (600, 800)), ((1200, 300), (1000, 250)), ((333, 500), (600, 900)), ((427, 640), (600, 899))],
)
def test_sides_are_rounded_down(size, expected):
    assert truncated_size(*size, 600, 1000) == expected
    assert truncated_size(*size[::-1], 600, 1000) == expected[::-1]


def test_no_side_is_empty():
    assert truncated_size(1, 5000, 600, 1000) == (1, 5000)
    assert truncated_size(3, 20000, 600, 1000)[0] == 1


def test_anchors_are_those_of_the_checkpoint():
    cells = inclusive_cells(16, VinVLConfig().anchor_sizes, VinVLConfig().anchor_ratios)
    assert cells[:2] == [(-15, -4, 30, 19), (-38, -16, 53, 31)] and len(cells) == 15
    assert cells[9] == (-248, -248, 263, 263) and cells[10] == (-3, -14, 18, 29) and cells[-1] == (-168, -344, 183, 359)


def test_names_and_shapes_are_those_of_the_published_checkpoint(golden):
    lines = (golden / "vinvl" / "vinvl_state_dict.txt").read_text().splitlines()
    published = dict(line.split(maxsplit=1) for line in lines)
    names = canonical_names(published)
    theirs = {new: published[name] for name, new in names.items()}
    with torch.device("meta"):
        ours = {name: str(tuple(t.shape)) for name, t in VinVLDetector(VinVLConfig()).state_dict().items()}
    assert ours.items() <= theirs.items()
    rest = theirs.keys() - ours.keys()
    assert all(name.startswith(("attribute.feature_extractor.", "roi_heads.box_predictor.bbox_pred.")) for name in rest)


def test_names_of_classes_and_attributes_are_those_of_its_label_map():
    # 1-based there: 0 is the background and "no attribute"
    assert VINVL_X152.classes[0] == "ad" and VINVL_X152.classes[571] == "girl" and VINVL_X152.classes[-1] == "zucchini"
    assert VINVL_X152.attributes[0] == "above" and VINVL_X152.attributes[503] == "white"


def test_attributes_depend_on_the_class_that_was_given():
    config = SimpleNamespace(**{name: getattr(VinVLConfig(), name) for name in ("num_classes", "num_attributes")})
    config.dim, config.class_embedding, config.attribute_hidden, config.roi_chunk = 8, 4, 16, 5
    torch.manual_seed(0)
    network = SimpleNamespace(config=config, attribute={"predictor": AttributePredictor(config).eval()})
    features, classes = torch.rand(7, 8), torch.arange(7)
    kept = Detections(torch.zeros(7, 4), torch.zeros(7, 4), features, classes, torch.ones(7))
    done = VinVLDetector.complete(network, kept)
    assert done.attr_ids.shape == done.attr_probs.shape == (7,) and (done.attr_ids >= 0).all()
    alone = VinVLDetector.complete(network, kept[2:3])
    assert torch.equal(alone.attr_probs, done.attr_probs[2:3])
    with torch.inference_mode():
        logits = network.attribute["predictor"](features, classes + 1)
    torch.testing.assert_close(done.attr_probs, logits.softmax(dim=1)[:, 1:].max(dim=1).values)
