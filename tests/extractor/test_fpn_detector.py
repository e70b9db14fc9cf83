from dataclasses import replace

import numpy as np
import pytest
import torch

from extractor.boxes import decode_inclusive, exclusive, inclusive_anchors
from extractor.configs import FPNConfig, PerClassNMS
from extractor.fpn_detector import FPNDetector, roi_levels
from extractor.ranking import shared_boxes
from extractor.rpn import PyramidProposalNetwork
from extractor.selection import select_per_class
from extractor.tensor_names import canonical_names

LEVELS = ("P2", "P3", "P4", "P5", "P6")


def test_anchors_are_the_published_integers():
    ratios = FPNConfig().anchor_ratios
    finest = [[-22, -10, 25, 13], [-14, -14, 17, 17], [-10, -22, 13, 25]]
    coarsest = [[-332, -152, 395, 215], [-224, -224, 287, 287], [-148, -328, 211, 391]]
    assert inclusive_anchors(1, 1, 4, (32,), ratios).tolist() == finest
    assert inclusive_anchors(1, 1, 64, (512,), ratios).tolist() == coarsest
    moved = inclusive_anchors(2, 3, 8, (64,), ratios)[15] - inclusive_anchors(1, 1, 8, (64,), ratios)[0]
    assert moved.tolist() == [16, 8, 16, 8]


def test_zero_deltas_leave_inclusive_boxes_where_they_are():
    boxes = torch.tensor([[3.0, 4.0, 3.0, 9.0], [0.0, 0.0, 31.0, 15.0]])
    assert torch.allclose(decode_inclusive(boxes, torch.zeros(2, 4)), boxes, atol=1e-5)


def test_proposals_equal_the_reference_implementation(golden):
    stored = np.load(golden / "x101fpn" / "ops_rpn.npz")
    with torch.device("meta"):
        network = PyramidProposalNetwork(FPNConfig())
    maps = [[torch.from_numpy(stored[f"{kind}_{level}"])[0] for level in LEVELS] for kind in ("logits", "deltas")]
    boxes, scores = network.propose(*maps, tuple(stored["image_hw"].tolist()))
    np.testing.assert_allclose(scores.numpy(), stored["scores"], atol=1e-6)
    np.testing.assert_allclose(boxes.numpy(), stored["proposals"], atol=1e-3)


def test_roi_pooling_equals_the_reference_implementation(golden):
    stored = np.load(golden / "x101fpn" / "ops_roialign_fpn.npz")
    boxes = torch.from_numpy(stored["boxes"])
    np.testing.assert_array_equal(roi_levels(boxes).numpy() - 2, stored["levels"] - stored["levels"].min())
    with torch.device("meta"):
        detector = FPNDetector(FPNConfig())
    pooled = detector.pool([torch.from_numpy(stored[level]) for level in LEVELS[:-1]], boxes)
    np.testing.assert_allclose(pooled.numpy(), stored["pooled"], atol=1e-6)


@pytest.mark.parametrize("case", ["few60", "rand180", "rand180_conf02"])
def test_selection_equals_the_reference_implementation(golden, case):
    stored = np.load(golden / "x101fpn" / f"ops_select_{case}.npz")
    boxes = torch.from_numpy(stored["proposals"]) / float(stored["im_scale"])
    scores = torch.from_numpy(stored["logits"]).softmax(dim=1)[:, 1:]
    rule = PerClassNMS(min_score=0.0, min_regions=100, pixel_inclusive=True)
    rows, _ = select_per_class(shared_boxes(exclusive(boxes), rule.threshold), scores, rule)
    np.testing.assert_array_equal(rows.numpy()[: len(stored["keep_ids"])], stored["keep_ids"])
    np.testing.assert_allclose(boxes[rows].numpy(), stored["bbox"], atol=1e-3)
    np.testing.assert_array_equal(scores[rows].argmax(dim=1).numpy(), stored["objects"])
    np.testing.assert_allclose(scores[rows].max(dim=1).values.numpy(), stored["cls_prob_max"], atol=1e-5)


def test_tensor_names_and_shapes_are_those_of_the_published_checkpoint(golden):
    lines = (golden / "x101fpn_state_dict.txt").read_text().splitlines()
    published = dict(line.split(maxsplit=1) for line in lines)
    names = canonical_names(published)
    theirs = {new: published[name] for name, new in names.items() if "bbox_pred" not in new}
    with torch.device("meta"):
        ours = {name: str(tuple(tensor.shape)) for name, tensor in FPNDetector(FPNConfig()).state_dict().items()}
    assert ours == theirs


@pytest.fixture(scope="module")
def small():
    config = FPNConfig(
        stem_channels=8,
        widths=(8, 8, 16, 16),
        channels=(16, 16, 32, 32),
        blocks=(1, 1, 1, 1),
        groups=4,
        pyramid_channels=16,
        proposals_per_level=30,
        proposals=60,
        pooled_size=3,
        hidden=24,
        num_classes=9,
        roi_chunk=16,
    )
    generator = torch.Generator().manual_seed(3)
    detector = FPNDetector(config).eval()
    for tensor in detector.state_dict().values():
        if tensor.ndim >= 2:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (2.0 / tensor[0].numel()) ** 0.5)
    return detector


@pytest.mark.parametrize("size", [(1, 1), (2, 70), (64, 96), (65, 97)])
def test_any_size_gives_proposals_inside_the_image(small, size):
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1)) * 50
    found = next(small.detect(images))
    assert len(found) and found.features.shape == (len(found), 24) and found.class_scores.shape == (len(found), 9)
    assert (found.rois >= 0).all()
    assert (found.rois[:, 2] <= size[1] - 1).all() and (found.rois[:, 3] <= size[0] - 1).all()


def test_proposals_may_reach_into_the_padding_as_iglue_had_it(small):
    images = torch.randn(1, 3, 65, 97, generator=torch.Generator().manual_seed(1)) * 50
    padded = FPNDetector(replace(small.config, clip_to="padded")).eval()
    padded.load_state_dict(small.state_dict())
    rois = next(padded.detect(images)).rois
    assert 96 < rois[:, 2].max() <= 127 and 64 < rois[:, 3].max() <= 95


def test_a_roi_does_not_depend_on_the_others(small):
    images = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 50
    boxes = torch.tensor([[2.0 * i, i, 2.0 * i + 30, i + 20] for i in range(20)])
    together = next(small.detect(images, [boxes]))
    for i in (0, 15, 16, 19):
        alone = next(small.detect(images, [boxes[i : i + 1]]))
        assert torch.equal(alone.features[0], together.features[i])
        assert torch.equal(alone.class_scores[0], together.class_scores[i])
    assert len(next(small.detect(images, [boxes[:0]]))) == 0


def test_maps_that_are_not_finite_are_reported(small):
    images = torch.zeros(2, 3, 64, 64)
    images[1, 0, 5, 5] = torch.nan
    first, second = small.detect(images)
    assert first is not None and second is None
