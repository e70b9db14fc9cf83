import pytest

from cache.distribution import Distribution
from cache.plots import _coarser, _draw_distribution, _evenly


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


@pytest.mark.parametrize("low", [1e-7, 1e-3, 0.05, 2.0, 40.0])
def test_numbers_under_an_axis_do_not_touch(low):
    figure_module = pytest.importorskip("matplotlib.figure")
    numbers = Distribution()
    numbers.add([low * (500 / low) ** (i / 99) for i in range(100)])
    figure = figure_module.Figure(figsize=(5.6, 4.0), layout="constrained")
    _draw_distribution(figure.subplots(), "box_width", numbers)
    figure.canvas.draw()
    (axes,) = figure.axes
    shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    left, right = axes.get_window_extent().intervalx
    shown = sorted((box for box in shown if left <= (box.x0 + box.x1) / 2 <= right), key=lambda box: box.x0)
    assert len(shown) > 2 and all(one.x1 < other.x0 for one, other in zip(shown, shown[1:], strict=False))
