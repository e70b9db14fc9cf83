import numpy as np
import pytest
import torch

from extractor.configs import C4Config, MaxClassNMS
from extractor.detector import Detector
from extractor.selection import select_max_class


@pytest.fixture(scope="module")
def reference_heads(golden_weight):
    """A full-size detector of which only the linear heads are filled."""
    with torch.device("meta"):
        detector = Detector(C4Config())
    predictor = detector.roi_heads.box_predictor.to_empty(device="cpu")
    prefix = "roi_heads.box_predictor."
    shapes = {name: tuple(tensor.shape) for name, tensor in predictor.state_dict().items()}
    state = {name: torch.from_numpy(golden_weight(prefix + name, shape)) for name, shape in shapes.items()}
    predictor.load_state_dict(state)
    return detector


@pytest.mark.parametrize("case", ["clustered60", "rand150", "rand150_wide"])
def test_heads_and_selection_equal_the_reference_implementation(golden, reference_heads, case):
    stored = np.load(golden / "r101c4" / f"ops_select_{case}.npz")
    packed = golden / "r101c4" / f"ops_select_{case}_features.npz"
    features = np.load(packed)["f"] if packed.exists() else np.load(packed.with_suffix(".npy"))
    (raw_h, raw_w), (h, w) = stored["raw_hw"].tolist(), stored["resized_hw"].tolist()
    with torch.inference_mode():
        found = reference_heads.predict(torch.from_numpy(stored["proposals"]), torch.from_numpy(features), (h, w))
        keep = select_max_class(found.boxes, found.class_probs, MaxClassNMS())
    np.testing.assert_array_equal(keep.numpy(), stored["sel_ids"])
    found = found[keep]
    np.testing.assert_array_equal(found.class_ids.numpy(), stored["obj_id"])
    np.testing.assert_array_equal(found.attr_ids.numpy(), stored["attr_id"])
    np.testing.assert_allclose(found.class_probs.numpy(), stored["obj_conf"], atol=1e-5)
    np.testing.assert_allclose(found.attr_probs.numpy(), stored["attr_conf"], atol=1e-5)
    boxes = found.boxes.numpy() * np.array([raw_w / w, raw_h / h] * 2)
    np.testing.assert_allclose(boxes, stored["boxes"], atol=2e-3)


def spread(count):
    """Boxes far apart, best first."""
    left = torch.arange(count) * 20.0
    return torch.stack((left, left * 0, left + 10, left * 0 + 10), dim=1), torch.linspace(0.9, 0.1, count)


def test_too_few_regions_are_all_kept():
    boxes, scores = spread(5)
    assert select_max_class(boxes, scores, MaxClassNMS(max_regions=36)).tolist() == [0, 1, 2, 3, 4]
    assert select_max_class(boxes[:0], scores[:0], MaxClassNMS()).tolist() == []


def test_boxes_without_area_and_broken_scores_are_never_kept():
    boxes, scores = spread(4)
    boxes[1, 2] = boxes[1, 0]
    scores[2] = float("nan")
    assert select_max_class(boxes, scores, MaxClassNMS()).tolist() == [0, 3]


def test_the_threshold_rises_only_until_there_are_enough():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 6.5], [0, 0, 10, 8.5]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    assert select_max_class(boxes, scores, MaxClassNMS(max_regions=1)).tolist() == [0]
    assert select_max_class(boxes, scores, MaxClassNMS(max_regions=2)).tolist() == [0, 1]
    assert select_max_class(boxes, scores, MaxClassNMS(max_regions=3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("min_score", "min_regions", "expected"), [(0.45, 0, 3), (0.45, 4, 4), (0.95, 0, 0), (0.0, 0, 5)]
)
def test_weak_regions_go_but_not_below_the_minimum(min_score, min_regions, expected):
    boxes, scores = spread(5)
    rule = MaxClassNMS(min_score=min_score, min_regions=min_regions)
    assert len(select_max_class(boxes, scores, rule)) == expected
