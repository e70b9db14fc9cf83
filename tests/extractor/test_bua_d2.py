import numpy as np
import pytest
import torch

import extractor.bua_d2  # noqa: F401  it knows how ResizedDetectionNMS selects
from extractor.bua_presets import ResizedDetectionNMS
from extractor.configs import DetectionNMS
from extractor.detections import Detections
from extractor.preprocess import Frame
from extractor.selection import select

FRAME = Frame(80, 60, (75, 100), (1.25, 1.25))


def found(scores, boxes):
    """Detections of RoIs whose features are their numbers, with a box for each class."""
    scores, boxes = torch.tensor(scores), torch.tensor(boxes)
    count = len(scores)
    rois, rows = torch.rand(count, 4), torch.arange(count, dtype=torch.float32)[:, None]
    return Detections(rois, rois, rows, *scores.max(1)[::-1], class_scores=scores, class_boxes=boxes)


@pytest.mark.parametrize("rule", [DetectionNMS, ResizedDetectionNMS])
def test_boxes_without_area_go_with_their_features(rule):
    """Those that clipping left nothing of, which end MILVLG's own run."""
    whole, none = [10.0, 10.0, 60.0, 50.0], [100.0, 10.0, 100.0, 50.0]
    given = found([[0.3, 0.4], [0.5, 0.1], [0.2, 0.04]], [[whole, none], [none, whole], [whole, whole]])
    kept = select(rule(max_regions=4), given, FRAME)
    assert kept.rows.tolist() == [0, 1] and kept.classes.tolist() == [0, 1]
    np.testing.assert_allclose(kept.scores, [0.3, 0.1])
    np.testing.assert_allclose(kept.boxes, [np.array(whole) / 1.25] * 2)
    regions, _ = kept.of(given)
    assert regions.features[:, 0].tolist() == [0, 1] and regions.class_ids.tolist() == [0, 1]


def test_a_region_comes_once_for_each_class_and_may_end_with_the_resized_image():
    edge = [10.0, 10.0, 100.0, 75.4]
    kept = select(ResizedDetectionNMS(), found([[0.3, 0.4]], [[edge, edge]]), FRAME)
    assert kept.rows.tolist() == [0, 0] and kept.classes.tolist() == [1, 0]
    assert float(kept.boxes[0, 3]) == pytest.approx(75.4 / 1.25)  # beyond the 60 pixels that there are
    assert float(select(DetectionNMS(), found([[0.3, 0.4]], [[edge, edge]]), FRAME).boxes[0, 3]) == 60


def test_only_so_many_of_the_best_are_kept():
    given = found([[0.05, 0.06], [0.9, 0.7]], [[[0.0, 0.0, 9.0, 9.0]] * 2, [[20.0, 20.0, 29.0, 29.0]] * 2])
    kept = select(ResizedDetectionNMS(max_regions=3), given, FRAME)
    assert kept.rows.tolist() == [1, 1, 0] and kept.classes.tolist() == [0, 1, 1]  # 0.05 is not above 0.05
    assert select(ResizedDetectionNMS(), given, FRAME).rows.tolist() == [1, 1, 0]
