import pytest

from cache.distribution import Distribution
from cache.plots import _coarser, _evenly


@pytest.mark.parametrize("whole", [True, False])
def test_no_number_is_lost_when_bins_change(whole):
    numbers = Distribution(whole)
    numbers.add([1, 1, 5, 40, 40, 300, 1000])
    places = sorted(numbers.bins)
    counts, edges = [numbers.bins[p] for p in places], [numbers.edges(p) for p in places]
    even, places = _evenly(counts, edges, numbers.low, numbers.high, whole)
    assert sum(even) == pytest.approx(7) and places[0][0] <= 1 <= 1000 <= places[-1][1] + 1e-9
    assert sum(_coarser(counts, edges)[0]) == 7


def test_one_value_is_one_bar():
    numbers = Distribution(whole=True)
    numbers.add([36] * 5)
    counts, edges = _evenly([5], [numbers.edges(36)], 36, 36, True)
    assert counts == [5] and edges == [(35.5, 36.5)]
