"""Pictures of VSR in a report, those of its paper: by relation, by category, by training captions, and by how often a
relation is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .published import Place, most_precise
from .report_scores import Estimate, Scores
from .report_style import GREY, TASK_NAMES, add_legend, model_style, new_figure, tidy
from .report_vsr import FREQUENT, VsrReport
from .tasks.vsr_relations import CATEGORIES, UNMAPPED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCURACY = "accuracy (%)"


def vsr_figures(reports: Sequence[VsrReport], scores: Scores) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of what there is data for."""
    for one in reports:
        if one.frequent:
            yield f"{one.task}-relations", _relations(one)
    by_category = {one.task: rows for one in reports if (rows := _of_categories(one, scores))}
    if by_category:
        yield "vsr-categories", _categories(reports, by_category)
    if known := [one for one in reports if one.likeness]:
        yield "vsr-frequency", _frequency(known)
    if known := [one for one in reports if one.samples]:
        yield "vsr-samples", _samples(known)


def _relations(one: VsrReport) -> Figure:
    """Accuracy by relation, and below how many captions have it."""
    from matplotlib.figure import Figure

    shown, models, style = one.frequent, one.models, model_style(one.models)
    figure = Figure(figsize=(max(6.5, 1.6 + 0.3 * len(shown)), 6.2), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for place, model in enumerate(models):
        offset = 0.5 * ((place + 0.5) / len(models) - 0.5)
        points = [
            (x + offset, one.accuracy[model, r.name]) for x, r in enumerate(shown) if (model, r.name) in one.accuracy
        ]
        _points(axes, points, model, style(model))
    _majority(axes, one)
    tidy(axes, f"relations with more than {FREQUENT[one.task]} test captions, the most frequent first", "", ACCURACY)
    axes.set_ylim(0, 103)
    trained = [relation.trained for relation in shown]
    if None not in trained:
        below.bar(range(len(shown)), trained, 0.7, color="#bbbbbb", label="to train on")
    below.bar(range(len(shown)), [relation.tested for relation in shown], 0.4, color=GREY, label="tested")
    tidy(below, "", "", "captions")
    below.set_yscale("log")
    below.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    below.set_xticks(range(len(shown)), [relation.name for relation in shown], rotation=60, ha="right", fontsize=8)
    below.set_xlim(-0.7, len(shown) - 0.3)
    figure.suptitle(f"{TASK_NAMES[one.task]}: accuracy by relation", fontsize=12)
    add_legend(figure, [axes, below])
    return figure


def _points(axes: Axes, points: Sequence[tuple[float, Estimate]], label: str, look: dict[str, str]) -> None:
    """Marks with the deviation over runs, where there are several."""
    x, estimates = zip(*points, strict=True) if points else ((), ())
    errors = [estimate.deviation or 0.0 for estimate in estimates]
    axes.errorbar(
        x, [estimate.value for estimate in estimates], errors if any(errors) else None, **look, label=label,
        linestyle="none", markersize=4.5, elinewidth=0.9,
    )  # fmt: skip


def _majority(axes: Axes, one: VsrReport) -> None:
    if one.majority is not None:
        axes.axhline(one.majority, color=GREY, linestyle=":", linewidth=1.2, label="most frequent answer")


Bars = dict[tuple[str, str], Estimate]  # (model, category) -> accuracy


def _of_categories(one: VsrReport, scores: Scores) -> Bars:
    whole = Place("zero-shot", one.task, "en", "0", "accuracy")
    return {
        (model, name): estimate
        for model in one.models
        for name in (*CATEGORIES, UNMAPPED)
        if (estimate := scores.get(model, whole._replace(metric=f"accuracy/category={name}")))
    }


def _categories(reports: Sequence[VsrReport], found: dict[str, Bars]) -> Figure:
    models = list(dict.fromkeys(model for bars in found.values() for model, _ in bars))
    style, wide = model_style(models), 0.8 / len(models)
    figure, panels = new_figure(len(found), "VSR: accuracy by category of relation", (7.4, 4.0))
    for axes, (task, bars) in zip(panels, found.items(), strict=True):
        one = next(report for report in reports if report.task == task)
        names = [name for name in (*CATEGORIES, UNMAPPED) if any((model, name) in bars for model in models)]
        sizes = [sum(r.tested for r in one.relations if r.category == name) for name in names]
        for place, model in enumerate(models):
            at = [(x + (place - (len(models) - 1) / 2) * wide, bars.get((model, name))) for x, name in enumerate(names)]
            at = [(x, estimate) for x, estimate in at if estimate]
            errors = [estimate.deviation or 0.0 for _, estimate in at]
            axes.bar(
                [x for x, _ in at], [estimate.value for _, estimate in at], wide * 0.94,
                yerr=errors if any(errors) else None, color=style(model)["color"], label=model,
                error_kw={"elinewidth": 0.9, "ecolor": "#333333"},
            )  # fmt: skip
        _majority(axes, one)
        labels = [f"{name}\n{size:,}" if size else name for name, size in zip(names, sizes, strict=True)]
        axes.set_xticks(range(len(names)), labels)
        tidy(axes, TASK_NAMES[task], "category, and its test captions", ACCURACY)
        axes.set_ylim(0, 100)
        axes.tick_params(axis="x", labelsize=7.5)
    add_legend(figure, panels)
    return figure


def _frequency(reports: Sequence[VsrReport]) -> Figure:
    """Accuracy of relations by how many captions train them, with Pearson's r."""
    models = list(dict.fromkeys(model for one in reports for model in one.likeness))
    style = model_style(models)
    figure, panels = new_figure(len(reports), "VSR: are relations easier that are trained on more?", (5.6, 4.2))
    for axes, one in zip(panels, reports, strict=True):
        for model, likeness in one.likeness.items():
            pairs = [
                (r.trained, one.accuracy[model, r.name].value) for r in one.frequent if (model, r.name) in one.accuracy
            ]
            label = f"{model}, {one.task}: r = {likeness.pearson:+.2f}, p = {likeness.pearson_p:.2g}"
            axes.scatter(*zip(*pairs, strict=True), s=24, alpha=0.85, **style(model), label=label)
        _majority(axes, one)
        axes.set_xscale("log")
        tidy(axes, TASK_NAMES[one.task], "training captions with the relation", ACCURACY)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    add_legend(figure, panels, rows=max(2, len(models)))
    return figure


def _samples(reports: Sequence[VsrReport]) -> Figure:
    """Accuracy by training captions, and what was published with all of them."""
    models = list(dict.fromkeys(model for one in reports for model in one.samples))
    style = model_style(models)
    figure, panels = new_figure(len(reports), "VSR: accuracy by training captions", (5.4, 4.0))
    for axes, one in zip(panels, reports, strict=True):
        for model, curve in one.samples.items():
            places, estimates = [one.sets[name] for name in curve], list(curve.values())
            errors = [estimate.deviation or 0.0 for estimate in estimates]
            axes.errorbar(
                places, [estimate.value for estimate in estimates], errors if any(errors) else None, **style(model),
                markersize=5, linewidth=1.7, elinewidth=1, capsize=2, label=model,
            )  # fmt: skip
            printed = most_precise().get((model, Place("zero-shot", one.task, "en", "0", "accuracy")))
            if printed:
                look = {**style(model), "markerfacecolor": "none", "markersize": 9, "linestyle": "none"}
                axes.errorbar([max(one.sets.values())], [printed.value], [printed.deviation or 0.0], **look,
                              label=f"{model}, published")  # fmt: skip
        _majority(axes, one)
        axes.set_xticks([*one.sets.values()], [f"{name}\n{rows:,}" for name, rows in one.sets.items()])
        tidy(axes, TASK_NAMES[one.task], "share of the training set, and its captions", ACCURACY)
        low = min(min(line.get_ydata()) for line in axes.lines)
        axes.set_ylim(min(45.0, low - 3), 100)
    add_legend(figure, panels, rows=2)
    return figure
