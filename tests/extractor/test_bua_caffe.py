from collections import OrderedDict

import numpy as np
import pytest
import torch

from extractor.boxes import exclusive
from extractor.bua_caffe import ANCHORS, BuaCaffeDetector, CaffeProposalNetwork, just_below, select_caffe
from extractor.bua_presets import BUA_R101_10_100, BuaCaffeConfig, CaffeNMS
from extractor.detections import Detections
from extractor.preprocess import frame
from extractor.ranking import shared_boxes
from extractor.selection import select
from extractor.weights import load_weights
from tests.extractor.shrunken import random_state, shrunken


@pytest.mark.parametrize("case", ["a", "c_topk"])
def test_proposals_equal_the_reference_implementation(golden, case):
    stored = np.load(golden / "bua_caffe" / f"ops_rpn_{case}.npz")
    network = CaffeProposalNetwork(BuaCaffeConfig())
    np.testing.assert_array_equal(network.cells.numpy(), stored["cell_anchors"])
    maps = (torch.from_numpy(stored[name])[0] for name in ("logits", "deltas"))
    boxes, scores = network.propose(*maps, tuple(stored["image_hw"].tolist()), float(stored["im_scale"]))
    np.testing.assert_allclose(boxes.numpy(), stored["proposals"], atol=1e-3)
    np.testing.assert_allclose(scores.numpy(), stored["scores"], atol=1e-6)


@pytest.mark.parametrize("case", ["mid", "high", "tiny6"])
@pytest.mark.parametrize("bounds", ["10_100", "36_36", "100_100", "10_100_t0.4"])
def test_selection_equals_the_reference_implementation(golden, case, bounds):
    stored = np.load(golden / "bua_caffe" / f"ops_select_{case}.npz")
    rois = torch.from_numpy(stored["boxes_resized"])
    class_scores = torch.from_numpy(stored["logits"]).float().softmax(dim=1)[:, 1:]
    found = Detections(rois, rois, rois, *reversed(class_scores.max(dim=1)), class_scores)
    least, most, *score = bounds.split("_")
    rule = CaffeNMS(min_score=0.4 if score else 0.2, min_regions=int(least), max_regions=int(most))
    to = frame(BUA_R101_10_100.preprocess, *stored["image_hw_raw"].tolist())
    assert to.scale[0] == stored["im_scale"]
    chosen = select(rule, found, to)
    np.testing.assert_array_equal(chosen.rows.numpy(), stored[f"{bounds}__keep_ids"])
    np.testing.assert_allclose(chosen.boxes.numpy(), stored[f"{bounds}__bbox"], atol=1e-3)
    np.testing.assert_array_equal(found.class_ids[chosen.rows].numpy(), stored[f"{bounds}__objects_id"])
    np.testing.assert_allclose(found.class_probs[chosen.rows].numpy(), stored[f"{bounds}__objects_conf"], atol=1e-5)


def test_an_equal_overlap_suppresses_and_pixels_count_inclusively():
    # two boxes of 10 x 10 pixels that share 10 x 5 of them, and a third of 10 x 10 that overlaps neither
    boxes = torch.tensor([[0.0, 0, 9, 9], [0.0, 5, 9, 14], [30.0, 30, 39, 39]])
    scores = torch.tensor([[0.9], [0.8], [0.7]])
    for threshold, expected in ((1 / 3, [0, 2]), (0.34, [0, 1, 2])):
        overlaps = shared_boxes(exclusive(boxes), just_below(threshold))
        rows, ranks = select_caffe(overlaps, scores, CaffeNMS(min_regions=0))
        assert rows.tolist() == expected and torch.equal(ranks, scores[rows, 0])


def test_the_order_tells_whether_there_were_too_many():
    boxes = torch.tensor([[40.0 * i, 0, 40 * i + 20, 20] for i in range(4)])
    scores = torch.tensor([[0.5], [0.9], [0.1], [0.7]])
    overlaps = shared_boxes(boxes, 0.3)

    def rows(least, most):
        return select_caffe(overlaps, scores, CaffeNMS(min_score=0.2, min_regions=least, max_regions=most))[0].tolist()

    assert rows(1, 3) == [0, 1, 3]  # as many as pass: the order of the proposals
    assert rows(1, 2) == [1, 3]  # too many: best first
    assert rows(4, 9) == [1, 3, 0, 2]  # too few: best first


def test_proposals_that_are_small_in_the_original_go():
    network = CaffeProposalNetwork(BuaCaffeConfig())
    logits, deltas = torch.zeros(24, 20, 20), torch.zeros(48, 20, 20)
    for scale in (1.0, 4.0):
        boxes, _ = network.propose(logits, deltas, (320, 320), scale)
        assert len(boxes) and (exclusive(boxes)[:, 2:] - boxes[:, :2] > 16 * scale).all()


def test_names_and_shapes_are_those_of_the_published_checkpoint(golden):
    lines = (golden / "bua_caffe_r101_state_dict.txt").read_text().splitlines()
    published = dict(line.split(maxsplit=1) for line in lines)
    with torch.device("meta"):
        ours = {
            name: str(tuple(tensor.shape)) for name, tensor in BuaCaffeDetector(BuaCaffeConfig()).state_dict().items()
        }
    assert ours.items() <= published.items()
    rest = {name for name in published.keys() - ours.keys() if not name.endswith("num_batches_tracked")}
    assert rest == {"roi_heads.box_predictor.bbox_pred.weight", "roi_heads.box_predictor.bbox_pred.bias"}


def test_variances_are_those_of_the_file_whatever_it_says_of_its_modules(tmp_path):
    """detectron2 takes 1e-5 off them where the file was saved from modules of another version."""
    preset = shrunken(BUA_R101_10_100)
    state = OrderedDict(random_state(preset.architecture))
    norms = [name.removesuffix(".running_var") for name in state if name.endswith(".running_var")]
    state |= {f"{norm}.num_batches_tracked": torch.tensor(7) for norm in norms if "res4" in norm or "res5" in norm}
    state._metadata = OrderedDict({norm: {"version": 2} for norm in norms})
    torch.save({"model": state}, tmp_path / "bua.pth")
    assert torch.load(tmp_path / "bua.pth")["model"]._metadata[norms[0]] == {"version": 2}
    network = BuaCaffeDetector(preset.architecture)
    load_weights(network, tmp_path / "bua.pth")
    loaded = network.state_dict()
    assert len(norms) > 10 and all(torch.equal(loaded[f"{n}.running_var"], state[f"{n}.running_var"]) for n in norms)
    torch.testing.assert_close(loaded[ANCHORS], network.default_tensors()[ANCHORS], rtol=0, atol=0)


def test_other_anchors_are_doubted():
    with torch.device("meta"):
        network = BuaCaffeDetector(BuaCaffeConfig())
    own = network.default_tensors()
    assert network.doubts(own) == "" and network.doubts({ANCHORS: own[ANCHORS] + 0.5}) == ""
    assert "sides of 3 to 46 px where Caffe's have 43 to 735" in network.doubts({ANCHORS: own[ANCHORS] / 16})
