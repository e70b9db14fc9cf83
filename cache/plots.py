"""Pictures of what `stats` found, one file a question."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from .distribution import Distribution
from .stats import MEASURES, Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREY = "#3465a4", "#888888"
_TOP = 25  # names in a plot
_LONGEST_NAME = 28

# file -> the measures in it, one panel each
_FIGURES = {
    "regions": ("regions",),
    "images": ("width", "height"),
    "boxes": ("box_width", "box_height", "box_area"),
    "features": ("norm", "peak", "zeros"),
    "scores": ("score", "class_prob", "attr_prob"),
}
_SHARES = ("zeros", "score", "class_prob", "attr_prob")  # drawn from 0 to 1


def plot(stats: Stats, folder: Path, form: str = "png") -> list[Path]:
    """Draw the measures and the most frequent names; what there are no numbers of is left out. Returns the files."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, measures in _FIGURES.items():
        shown = [measure for measure in measures if stats.measures[measure].count]
        if not shown:
            continue
        figure = Figure(figsize=(5.6 * len(shown), 4.0), layout="constrained")
        for axes, measure in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            _draw_distribution(axes, measure, stats.measures[measure])
        figure.suptitle(f"{_shortened(Path(stats.name).name, 60)}: {stats.records:,} images", fontsize=11)
        written.append(folder / f"{name}.{form}")
        figure.savefig(written[-1], dpi=120)
    for what in ("classes", "attributes"):
        if names := stats.named(what, _TOP):
            written.append(folder / f"{what}.{form}")
            figure = Figure(figsize=(6.4, 1.2 + 0.26 * len(names)), layout="constrained")
            _draw_names(figure.subplots(), what, names, stats)
            figure.savefig(written[-1], dpi=120)
    return written


def _draw_distribution(axes: Axes, measure: str, numbers: Distribution) -> None:
    places = sorted(numbers.bins)
    edges = [numbers.edges(place) for place in places]
    counts = [numbers.bins[place] for place in places]
    unit_scale = measure in _SHARES and numbers.low >= 0 and numbers.high <= 1
    if unit_scale or numbers.whole or numbers.high <= 8 * max(numbers.low, 1e-9):
        low, high = (0.0, 1.0) if unit_scale else (numbers.low, numbers.high)
        counts, edges = _evenly(counts, edges, low, high, numbers.whole)
    else:
        counts, edges = _coarser(counts, edges)
        _scale_by_factors(axes, edges[-1][1] / edges[0][0])
    widths = [high - low for low, high in edges]
    axes.bar([low for low, _ in edges], counts, widths, align="edge", color=_BLUE, edgecolor="white", linewidth=0.3)
    axes.axvline(numbers.mean, color=_GREY, linestyle="--", linewidth=1)
    axes.set_title(f"min {_number(numbers.low)}, mean {_number(numbers.mean)}, max {_number(numbers.high)}", fontsize=9)
    axes.set_xlabel(MEASURES[measure])
    axes.set_ylabel("images" if measure in ("regions", "width", "height") else "regions")
    _tidy(axes)


def _evenly(
    counts: list[int], edges: list[tuple[float, float]], low: float, high: float, whole: bool
) -> tuple[list[float], list[tuple[float, float]]]:
    """The same numbers in bins of one width; a bin that reaches into several is split among them."""
    if whole:
        step = max(1, round((high - low + 1) / 60))
        start, number = low - 0.5, int((high - low) // step) + 1
    else:
        number = 40
        start, step = low, (high - low) / number or 1.0
    even = [0.0] * number
    for count, (left, right) in zip(counts, edges, strict=True):
        left, right = max(left, start), min(right, start + number * step)
        first, last = (min(max(int((x - start) / step), 0), number - 1) for x in (left, max(left, right - 1e-12)))
        for place in range(first, last + 1):
            part = min(right, start + (place + 1) * step) - max(left, start + place * step)
            even[place] += count * (part / (right - left) if right > left else 1 / (last - first + 1))
    return even, [(start + i * step, start + (i + 1) * step) for i in range(number)]


def _coarser(counts: list[int], edges: list[tuple[float, float]]) -> tuple[list[int], list[tuple[float, float]]]:
    """What is above zero, in bins a quarter of an octave wide: the edges of the fine ones lie on theirs."""
    merged: dict[int, int] = {}
    for count, (low, high) in zip(counts, edges, strict=True):
        if high > 0:
            place = math.floor(4 * math.log2((low + high) / 2))
            merged[place] = merged.get(place, 0) + count
    return list(merged.values()), [(2 ** (place / 4), 2 ** ((place + 1) / 4)) for place in merged]


def _scale_by_factors(axes: Axes, span: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,), numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_names(axes: Axes, what: str, names: list[tuple[str, int]], stats: Stats) -> None:
    words, counts = zip(*names, strict=True)
    axes.barh(range(len(words)), counts, color=_BLUE)
    axes.set_yticks(range(len(words)), [_shortened(word, _LONGEST_NAME) for word in words], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("regions")
    different = len(getattr(stats, what))
    title = f"the {len(words)} most frequent of {different:,} {what}" if different > len(words) else f"all {what}"
    axes.set_title(f"{_shortened(Path(stats.name).name, 40)}: {title}", fontsize=10)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_label_text() in ("images", "regions"):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _shortened(text: str, most: int) -> str:
    """For a label: no formulas, no control characters, no more than `most` characters."""
    text = "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")
    return text if len(text) <= most else f"{text[: most - 1]}…"
