"""Pictures of a report: few-shot curves, types of questions, subsets, properties of languages, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from .published import Place, most_precise
from .report import Report
from .report_intervals import LEVEL
from .report_languages import Correlation
from .report_scores import Scores, languages_of
from .report_style import (
    COLOURS,
    GREY,
    LINE,
    MARKERS,
    TASK_NAMES,
    add_legend,
    model_style,
    new_figure,
    score_axis,
    tidy,
)
from .report_tables import in_order, metric_name
from .report_vsr_data import annotation_figures
from .report_vsr_plots import vsr_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENGLISH_TASKS = {"marvl": "nlvr2"}  # where the score in English is another task's
BASE_METRICS = ("accuracy", "accuracy_full", "ir_r1", "tr_r1")


def draw(report: Report, folder: Path, form: str) -> list[Path]:
    """Draw what there is data for, one file a question. Returns the files."""
    written = []

    def save(figure: Figure | None, name: str) -> None:
        if figure is not None:
            written.append(folder / f"{name}.{form}")
            figure.savefig(written[-1], dpi=130)

    save(_few_shot(report.scores), "few-shot")
    for model in report.scores.models:
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in model)
        save(_types(report, model), f"question-types-{name}")
        save(_subsets(report.scores, model), f"subsets-{name}")
    for name in dict.fromkeys(one.property for one in report.correlations):
        safe = "".join(c if c.isalnum() else "_" for c in name)
        save(_property([one for one in report.correlations if one.property == name]), f"property-{safe}")
    for task in dict.fromkeys(one.place.task for one in report.intervals):
        save(_intervals([one for one in report.intervals if one.place.task == task]), f"differences-{task}")
    for name, figure in vsr_figures(report.vsr, report.scores):
        save(figure, name)
    for folder_of_vsr in dict.fromkeys(one.annotations for one in report.vsr[:1] if one.annotations):
        for name, figure in annotation_figures(folder_of_vsr):
            save(figure, name)
    return written


def _few_shot(scores: Scores) -> Figure | None:
    """The average over languages by training samples, as measured and as published; English without shots beside it."""
    known = [(model, place, one.value) for (model, place), one in most_precise().items()]
    published = Scores(one for one in known if not one[1].language.startswith("avg"))
    panels = {}
    for task, metric in dict.fromkeys((p.task, p.metric) for p in scores.places if p.metric in BASE_METRICS):
        place = Place("few-shot", task, "avg", "", metric)
        curves = {model: curve for model in scores.models if len(curve := scores.curve(model, place)) > 1}
        if curves:
            panels[place] = curves
    if not panels:
        return None
    figure, axes = new_figure(len(panels), "Few-shot curves, average over languages")
    style = model_style(scores.models)
    for one, (place, curves) in zip(axes, panels.items(), strict=True):
        for model, curve in curves.items():
            one.plot(*zip(*curve, strict=True), **style(model), markersize=5, linewidth=1.8, label=model)
            if len(printed := published.curve(model, place)) > 1:
                hollow = {**style(model), "markerfacecolor": "none", "linestyle": "--", "alpha": 0.7}
                one.plot(*zip(*printed, strict=True), **hollow, markersize=8, linewidth=1, label=f"{model}, published")
            task = ENGLISH_TASKS.get(place.task, place.task)
            if english := scores.get(model, Place("zero-shot", task, "en", "0", place.metric)):
                colour = style(model)["color"]
                one.axhline(english.value, color=colour, linestyle=":", linewidth=1.3, label=f"{model}, English")
        title = f"{TASK_NAMES.get(place.task, place.task)}, {metric_name(place.metric)}"
        tidy(one, title, "training samples in the language", score_axis(place.metric))
        one.set_ylim(0, 1.06 * max(1, *(max(line.get_ydata()) for line in one.lines)))
    add_legend(figure, axes, rows=3)
    return figure


def _types(report: Report, model: str) -> Figure | None:
    """Accuracy by type of question and training samples, averaged over languages."""
    scores, panels = report.scores, {}
    for metric in ("accuracy", "accuracy_full"):
        parts = sorted({p.metric for p in scores.places if p.metric.startswith(f"{metric}/structural=")})
        places = [Place("few-shot", "xgqa", "avg", "", part) for part in parts]
        curves = {place: curve for place in places if (curve := scores.curve(model, place))}
        if curves:
            panels[metric] = curves
    if not panels:
        return None
    figure, axes = new_figure(len(panels), f"xGQA by structural type of question: {model}", (6.2, 4.2))
    for one, (metric, curves) in zip(axes, panels.items(), strict=True):
        for number, (place, curve) in enumerate(curves.items()):
            size = next(size for known, size in report.sizes.items() if known.metric == place.metric)
            name = f"{metric_name(place.metric)} (n = {size:,})"
            one.plot(*zip(*curve, strict=True), color=COLOURS[number], marker=MARKERS[number], markersize=5, label=name)
        trained = ", with the questions that few-shot training uses" if metric == "accuracy_full" else ""
        tidy(one, f"average over languages{trained}", "training samples in the language", score_axis(metric))
        one.set_ylim(0, 100)
        if len(samples := {x for curve in curves.values() for x, _ in curve}) == 1:
            one.set_xticks(list(samples))
        one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8, frameon=False)
    return figure


def _subsets(scores: Scores, model: str) -> Figure | None:
    """Zero-shot recall on the two halves of xFlickr&CO, by language."""
    parts = {"Flickr": "flickr", "COCO": "coco"}
    panels = {}
    for metric in ("ir_r1", "tr_r1"):
        rows = {}
        for language in ("en", *languages_of("xflickrco", "zero-shot"), "avg"):
            places = [
                Place("zero-shot", "xflickrco", language, "0", f"{metric}/subset={part}") for part in parts.values()
            ]
            found = [scores.get(model, place) for place in places]
            if all(found):
                rows[language] = [one.value for one in found]
        if rows:
            panels[metric] = rows
    if not panels:
        return None
    figure, axes = new_figure(len(panels), f"xFlickr&CO by subset, zero-shot: {model}", (6.4, 3.8))
    for one, (metric, rows) in zip(axes, panels.items(), strict=True):
        for number, part in enumerate(parts):
            places = [x + 0.4 * (number - 0.5) for x in range(len(rows))]
            values = [values[number] for values in rows.values()]
            bars = one.bar(places, values, 0.38, color=COLOURS[number], label=part)
            one.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
        one.set_xticks(range(len(rows)), list(rows))
        tidy(one, "each half ranked against all 2,000", "language", score_axis(metric))
    add_legend(figure, axes)
    return figure


def _property(found: Sequence[Correlation]) -> Figure | None:
    """Scores by a property, a panel for each task; on a logarithmic scale where it spans more than tenfold."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    panels = dict.fromkeys((one.task, one.metric) for one in found)
    models = list(dict.fromkeys(one.model for one in found))
    values = [x for one in found for x, _ in one.points.values()]
    wide = min(values) > 0 and max(values) > 10 * min(values)
    shown_in = {panel: [each for each in found if (each.task, each.metric) == panel] for panel in panels}
    titles = {panel: _with_r(*panel, shown, wide) for panel, shown in shown_in.items()}
    lines = max(title.count("\n") for title in titles.values())
    size = (5.0, 3.9 + LINE * (lines - 1))
    figure, axes = new_figure(len(panels), f"Zero-shot scores by language and {found[0].property}", size)
    style = model_style(models)
    for one, panel in zip(axes, panels, strict=True):
        shown = shown_in[panel]
        for each in shown:
            x, y = zip(*each.points.values(), strict=True)
            one.scatter(x, y, s=26, **style(each.model), label=each.model)
        for language in dict.fromkeys(language for each in shown for language in each.points):
            top = max(each.points[language][::-1] for each in shown if language in each.points)[::-1]
            one.annotate(language, top, (0, 5), textcoords="offset points", ha="center", fontsize=7, color=GREY)
        if wide:
            one.set_xscale("log")
            one.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
            one.xaxis.set_minor_locator(NullLocator())
        if max(values) >= 10_000:
            one.xaxis.set_major_formatter(EngFormatter(sep=""))
        tidy(one, titles[panel], found[0].property, score_axis(panel[1]))
        one.margins(0.1)
    add_legend(figure, axes)
    return figure


def _with_r(task: str, metric: str, shown: Sequence[Correlation], wide: bool) -> str:
    said = [(one.model, one.r_log if wide else one.r) for one in shown]
    text = ", ".join(f"{model} {'-' if r is None else f'{r:+.2f}'}".replace(" ", "\u00a0") for model, r in said)
    with_r = fill(f"r{' with log10' if wide else ''}: {text}", 54, break_long_words=False, break_on_hyphens=False)
    return f"{TASK_NAMES.get(task, task)}, {metric_name(metric)}\n{with_r}"


def _intervals(found: Sequence[Any]) -> Figure:
    """Differences from a model with their intervals, a row for each language and number of shots."""
    rows = list(dict.fromkeys((one.place.setup, one.place.language, one.place.shots) for one in found))
    rows.sort(key=lambda row: in_order(found[0].place._replace(setup=row[0], language=row[1], shots=row[2])))
    models = list(dict.fromkeys(one.model for one in found))
    title = f"{TASK_NAMES.get(found[0].place.task, found[0].place.task)}: difference from {found[0].against}"
    figure, (axes,) = new_figure(1, title, (6.6, 1.0 + 0.2 * len(rows) * max(1, len(models) / 2)))
    style = model_style(models)
    for one in found:
        row = rows.index((one.place.setup, one.place.language, one.place.shots))
        at = row + 0.6 * ((models.index(one.model) + 0.5) / len(models) - 0.5)
        error = [[one.difference - one.low], [one.high - one.difference]]
        label = {"label": one.model} if one is next(each for each in found if each.model == one.model) else {}
        look = {"markersize": 4, "linewidth": 1.2, "linestyle": "none", "elinewidth": 1.2}
        axes.errorbar([one.difference], [at], xerr=error, **style(one.model), **look, **label)
    axes.axvline(0, color=GREY, linewidth=1)
    names = [f"{language}, {setup}{f' {shots}' if shots not in ('', '0') else ''}" for setup, language, shots in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    metric = metric_name(found[0].place.metric)
    tidy(axes, "", f"{metric}, points; bars hold {LEVEL} % of the bootstrap draws", "")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    add_legend(figure, [axes])
    return figure
