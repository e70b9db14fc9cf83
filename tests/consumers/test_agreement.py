"""Agreement of annotators, on worked examples."""

import pytest

from cache import DataError
from consumers.agreement import disagreement, fleiss_kappa

TEXTBOOK = [  # ten items, five labels, fourteen raters: the example of Fleiss' own statistic in many textbooks
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
]  # fmt: skip


def test_kappa_of_the_textbook():
    assert fleiss_kappa(TEXTBOOK) == pytest.approx(0.210, abs=5e-4)
    assert fleiss_kappa([[3, 0], [0, 3]]) == 1


@pytest.mark.parametrize("counts", [[], [[3, 0], [3, 0]], [[2, 1], [2, 2]], [[1, 0], [0, 1]]])
def test_kappa_that_is_undefined(counts):
    with pytest.raises(DataError, match="kappa"):
        fleiss_kappa(counts)


def test_disagreement_of_two():
    assert disagreement([3, 0]) == 0 and disagreement([1, 1]) == 1 and disagreement([2, 1]) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="nobody can disagree"):
        disagreement([1, 0])
