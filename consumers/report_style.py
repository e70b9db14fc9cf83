"""How pictures of a report look: panels, axes, colours and legends.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart; a model keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from .report_tables import metric_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
GREY = "#777777"
TASK_NAMES = {
    "xvnli": "XVNLI", "gqa": "GQA", "xgqa": "xGQA", "nlvr2": "NLVR2", "marvl": "MaRVL", "flickr30k": "Flickr30K",
    "xflickrco": "xFlickr&CO", "wit": "WIT", "multi30k": "Multi30K", "vsr": "VSR, random split",
    "vsr-zeroshot": "VSR, split by concepts",
}  # fmt: skip
PANEL = (4.6, 3.6)  # inches
LINE = 0.17  # inches that a line of a title or a row of a legend takes


def new_figure(panels: int, title: str, size: tuple[float, float] = PANEL) -> tuple[Figure, Sequence[Axes]]:
    """Panels in rows of up to three, and room below for a legend."""
    from matplotlib.figure import Figure

    wide = min(panels, 3)
    high = -(-panels // wide)
    figure = Figure(figsize=(max(size[0] * wide, 5.5), size[1] * high + 0.9), layout="constrained")
    axes = list(figure.subplots(high, wide, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.set_visible(False)
    figure.suptitle(fill(title, int(10 * figure.get_figwidth())), fontsize=12)  # ten letters of that size an inch
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    return figure, axes[:panels]


def tidy(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend(figure: Figure, axes: Sequence[Axes], rows: int = 1) -> None:
    """One for all panels, below them, where it covers nothing; filled column by column."""
    found: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    models = list(dict.fromkeys(label.partition(", ")[0] for label in found))
    labels = sorted(found, key=lambda label: models.index(label.partition(", ")[0]))
    if found:
        columns = _columns(labels, min(-(-len(found) // rows), 5), figure.get_figwidth())
        lower = -(-len(found) // columns) - max(rows, 2)  # rows that the figure was not made for
        figure.set_figheight(figure.get_figheight() + LINE * max(0, lower))
        figure.legend(
            [found[label] for label in labels], labels, loc="outside lower center", ncols=columns, fontsize=8,
            frameon=False,
        )  # fmt: skip


def _columns(labels: Sequence[str], most: int, inches: float) -> int:
    """How many columns of a legend fit beside each other; each is as wide as the longest of its labels."""
    for columns in range(most, 1, -1):
        longest = [max(map(len, part)) for part in np.array_split(labels, columns)]
        if sum(0.6 + 0.065 * letters for letters in longest) < inches:  # a mark and the gaps, and letters of that size
            return columns
    return 1


def model_style(models: Sequence[str]) -> Callable[[str], dict[str, str]]:
    """Colour and marker of a model; where colours recur, they do with other markers."""

    def style(model: str) -> dict[str, str]:
        round_, place = divmod(models.index(model), len(COLOURS))
        return {"color": COLOURS[place], "marker": MARKERS[(place + round_) % len(MARKERS)]}

    return style


def score_axis(metric: str) -> str:
    return f"{metric_name(metric.partition('/')[0])} (%)"
