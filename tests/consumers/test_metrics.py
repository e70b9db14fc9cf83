"""Accuracy, recall and the few-shot area against values worked out by hand and by sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import DataError
from consumers.metrics import few_shot_auc, listed_ranks, macro_scores, percent, rank_summary, ranks, recalls


def test_percent():
    assert percent(633, 1164) == 100 * (633 / 1164)
    assert percent(0, 0) == 0


def test_ranks_by_hand():
    scores = np.array([[3, 1], [2, 5], [9, 4]], np.float32)
    by_caption, by_image = ranks(scores, np.array([0, 0, 1]))
    assert by_caption.tolist() == [0, 1, 1]
    assert by_image.tolist() == [1, 1]


def test_a_constant_matrix_has_no_luck():
    by_caption, by_image = ranks(np.zeros((40, 40)), np.arange(40))
    assert by_caption.tolist() == by_image.tolist() == list(range(40))
    assert recalls(by_caption, "ir") == {"ir_r1": 2.5, "ir_r5": 12.5, "ir_r10": 25.0}


@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_ranks_are_those_of_a_stable_sort(images, more, seed):
    rng = np.random.default_rng(seed)
    own = rng.permutation(np.concatenate([np.arange(images), rng.integers(0, images, more)]))
    scores = rng.integers(0, 3, (len(own), images)).astype(np.float32)
    by_caption, by_image = ranks(scores, own)
    order = np.argsort(-scores, axis=1, kind="stable")
    assert by_caption.tolist() == [order[i].tolist().index(own[i]) for i in range(len(own))]
    order = np.argsort(-scores, axis=0, kind="stable")
    for image in range(images):
        assert by_image[image] == min(order[:, image].tolist().index(i) for i in np.flatnonzero(own == image))


@pytest.mark.parametrize(
    ("scores", "images", "message"),
    [
        (np.zeros((2, 2)), [0], "do not fit 1 captions"),
        (np.array([[0, np.nan]]), [0], "not finite"),
        (np.zeros((2, 3)), [0, 1], "do not describe each of the 3"),
        (np.zeros((2, 2)), [0, 5], "do not describe each of the 2"),
    ],
)
def test_what_does_not_fit_is_refused(scores, images, message):
    with pytest.raises(DataError, match=message):
        ranks(scores, np.array(images))


def test_ranks_of_lists():
    assert listed_ranks([[4, 2], [0, 1], [3, 0]], np.array([2, 0, 1])).tolist() == [1, 0, 2]


def test_summary_counts_from_one():
    assert rank_summary(np.array([0, 1, 2, 9]), "tr") == {"tr_median": 2.0, "tr_mean": 4.0}


def test_area_below_a_curve():
    assert few_shot_auc([(0, 50), (10, 60)]) == 55
    assert few_shot_auc([(0, 0), (1, 10), (4, 10)]) == pytest.approx(8.75)
    for points in ([], [(0, 1)], [(1, 2), (3, 4)], [(0, 1), (0, 2)]):
        with pytest.raises(DataError, match="growing numbers of samples"):
            few_shot_auc(points)


def test_macro_scores_are_means_over_classes():
    found = macro_scores([0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 0, 1])
    assert found == pytest.approx({"precision": 100 / 3, "recall": 100 * (1 / 2 + 2 / 3) / 3, "f1": 100 * 15 / 14 / 3})
    assert macro_scores([], []) == {"precision": 0, "recall": 0, "f1": 0}
