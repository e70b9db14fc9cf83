"""Whether pictures of a report hold what is written in them, however long the names of models are."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from consumers.report_languages import Correlation
from consumers.report_plots import _property
from consumers.report_style import add_legend, new_figure

NAMES = ["uc2", *(f"a-model-with-a-long-name-and-adapters-seed-{n}" for n in range(9))]


def outside(figure):
    """What of the titles and of the legend is cut off by the edges of a figure."""
    FigureCanvasAgg(figure).draw()
    edges = figure.bbox
    parts = [figure._suptitle, *figure.legends, *(axes.title for axes in figure.axes)]
    boxes = {part: part.get_window_extent() for part in parts}
    return [p for p, b in boxes.items() if b.x0 < edges.x0 or b.x1 > edges.x1 or b.y0 < edges.y0 or b.y1 > edges.y1]


@pytest.mark.parametrize("rows", [1, 3])
def test_long_names_stay_inside(rows):
    figure, (axes,) = new_figure(1, f"xGQA by structural type of question: {NAMES[1]}, {NAMES[2]}")
    for name in NAMES:
        axes.plot([0, 1], label=name)
    add_legend(figure, [axes], rows)
    assert outside(figure) == []


def test_short_names_stand_beside_each_other():
    figure, (axes,) = new_figure(1, "Few-shot curves")
    for name in ("uc2", "m3p", "muniter", "xuniter"):
        axes.plot([0, 1], label=name)
    add_legend(figure, [axes])
    assert figure.legends[0]._ncols == 4 and figure._suptitle.get_text() == "Few-shot curves"


def test_correlations_of_many_models_are_told_within_their_panel():
    points = {"de": (1.0, 20.0), "ru": (2.0, 30.0), "zh": (3.0, 10.0)}
    found = [Correlation("articles", name, "xgqa", "accuracy", points, -0.5, None) for name in NAMES]
    figure = _property(found)
    assert outside(figure) == []
    assert all(f"{name}\u00a0-0.50" in figure.axes[0].get_title() for name in NAMES)
