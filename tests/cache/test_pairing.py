import numpy as np
import pytest

from cache.boxes import iou, mutual_best
from cache.pairing import MOST_ROWS, compare_pair
from tests.cache.images import image, pick, shaken


def test_iou_of_boxes():
    boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [3, 3, 3, 3]], float)
    assert iou(boxes[:1], boxes).tolist() == [[1, pytest.approx(1 / 3), 0, 0]]
    assert iou(boxes[3:], boxes[3:])[0, 0] == 0


def test_equals_are_matched_along_the_diagonal():
    rows, columns = mutual_best(np.ones((4, 4)))
    assert rows.tolist() == columns.tolist() == [0, 1, 2, 3]


def test_equal_records():
    pair = compare_pair(image(0), image(0))
    assert pair.equal and pair.matched_by == "rows" and len(pair.rows_a) == 12


def test_records_without_regions_are_equal_whatever_their_dimension():
    nothing = pick(image(0), slice(0, 0))
    pair = compare_pair(nothing, nothing.replace(features=np.zeros((0, 0), np.float32)))
    assert pair.equal and pair.regions == (0, 0)


def test_duplicate_features_are_matched_by_their_places():
    record = pick(image(0), [0, 0, 1, 2, 2, 2])
    pair = compare_pair(record, record.replace(boxes=record.boxes + [[0], [0], [0], [5], [6], [7]]))
    assert pair.matched_by == "features" and pair.rows_a.tolist() == pair.rows_b.tolist() == list(range(6))


def test_a_permutation_is_found():
    order = np.random.default_rng(0).permutation(12)
    pair = compare_pair(image(0), pick(image(0), order))
    assert pair.selection == "reordered" and (order[pair.rows_b] == pair.rows_a).all()


def test_regions_are_matched_by_their_boxes_when_features_differ():
    pair = compare_pair(image(0), shaken(image(0), 0.3))
    assert pair.matched_by == "boxes" and pair.selection == "unknown" and (pair.rows_a == pair.rows_b).all()
    assert pair.strangers < np.median(pair.cosines) < 0.9995


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_few_regions(n, m):
    pair = compare_pair(image(0, n=n), image(0, n=m))
    assert pair.regions == (n, m) and pair.equal == (n == m)


def test_zero_features_and_boxes_without_area():
    record = image(0)
    flat = record.replace(features=np.zeros_like(record.features), boxes=np.zeros_like(record.boxes))
    assert compare_pair(flat, flat).equal
    assert not compare_pair(record, flat).equal and not compare_pair(flat, record).equal


def test_many_regions_are_bounded():
    record = image(0, n=MOST_ROWS + 50, d=4)
    assert len(compare_pair(record, record.replace(boxes=record.boxes + 50)).rows_a) <= MOST_ROWS
