import pytest
import torch
from torchvision.ops import box_iou, nms

from extractor.boxes import pairwise_iou
from extractor.ranking import best_places, class_boxes, rank_by_survival, shared_boxes


@pytest.mark.parametrize("count", [1, 3, 4, 6, 7, 20])
def test_best_first_and_the_earlier_place_first_among_equals(count):
    values = torch.tensor([2.0, 5.0, 2.0, float("nan"), 9.0, 2.0, -float("inf")])
    expected = [4, 1, 0, 2, 5, 6]
    found = best_places(values, count).tolist()
    assert found == expected[: len(found)] and len(found) >= min(count, 6)


def test_like_a_stable_sort():
    values = torch.randint(0, 50, (2000,), generator=torch.Generator().manual_seed(0)).float()
    order = torch.sort(values, descending=True, stable=True).indices
    for count in (1, 100, 1999, 2000):
        assert torch.equal(best_places(values, count)[:count], order[:count])


def one_class_at_a_time(scores, boxes, threshold):
    """The published way: a suppression per class; a RoI's rank is its best score among those it survives."""
    best = torch.zeros(len(scores))
    for c in range(scores.shape[1]):
        keep = nms(boxes if boxes.ndim == 2 else boxes[:, c], scores[:, c], threshold)
        best[keep] = torch.maximum(best[keep], scores[keep, c])
    values, order = torch.sort(best, descending=True, stable=True)
    return order[values > 0], values[values > 0]


def random_case(seed, rois, classes, crowded=False):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(rois, 2, generator=generator) * (60 if crowded else 400)
    boxes = torch.cat((corner, corner + 5 + torch.rand(rois, 2, generator=generator) * 150), dim=1)
    # a few classes win nearly everywhere, as on a real photo
    logits = 2 * torch.randn(rois, classes, generator=generator) + 3 * torch.randn(classes, generator=generator)
    return boxes, logits.softmax(dim=1)


@pytest.mark.parametrize("threshold", [0.3, 0.5])
@pytest.mark.parametrize(("rois", "classes"), [(1, 1), (7, 3), (90, 30), (300, 40)])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("enough", [10, 10_000])
def test_equal_to_one_suppression_per_class(threshold, rois, classes, crowded, enough):
    for seed in range(3):
        boxes, scores = random_case(seed, rois, classes, crowded)
        rows, ranks = rank_by_survival(scores, shared_boxes(boxes, threshold), enough)
        expected_rows, expected_ranks = one_class_at_a_time(scores, boxes, threshold)
        assert torch.equal(rows, expected_rows[:enough]) and torch.equal(ranks, expected_ranks[:enough])


def test_equal_to_one_suppression_per_class_at_full_size():
    boxes, scores = random_case(5, 1000, 1600)
    rows, ranks = rank_by_survival(scores, shared_boxes(boxes, 0.5), 100)
    expected_rows, expected_ranks = one_class_at_a_time(scores, boxes, 0.5)
    assert torch.equal(rows, expected_rows[:100]) and torch.equal(ranks, expected_ranks[:100])


def test_every_class_may_have_its_own_boxes():
    generator = torch.Generator().manual_seed(1)
    boxes, scores = random_case(2, 120, 20)
    own = boxes[:, None] + 20 * torch.rand(120, 20, 1, generator=generator)
    for enough in (15, 1000):
        rows, ranks = rank_by_survival(scores, class_boxes(own, 0.4), enough)
        expected_rows, expected_ranks = one_class_at_a_time(scores, own, 0.4)
        assert torch.equal(rows, expected_rows[:enough]) and torch.equal(ranks, expected_ranks[:enough])


def test_of_equal_scores_the_earlier_roi_wins_and_zeros_never_do():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [50, 50, 60, 60], [80, 80, 90, 90]])
    scores = torch.tensor([[0.5, 0.0], [0.5, 0.2], [0.5, 0.0], [0.0, 0.0]])
    rows, ranks = rank_by_survival(scores, shared_boxes(boxes, 0.5), 10)
    assert rows.tolist() == [0, 2, 1] and ranks.tolist() == pytest.approx([0.5, 0.5, 0.2])


def test_nothing_gives_nothing():
    rows, ranks = rank_by_survival(torch.zeros(0, 5), shared_boxes(torch.zeros(0, 4), 0.5), 10)
    assert len(rows) == len(ranks) == 0


def test_the_matrix_is_torchvisions():
    boxes, _ = random_case(3, 60, 2)
    assert torch.equal(pairwise_iou(boxes, boxes), box_iou(boxes, boxes))
