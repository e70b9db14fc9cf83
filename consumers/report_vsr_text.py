"""The part of a report in Markdown that is about VSR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from .report_scores import Estimate
from .report_vsr import FREQUENT, VsrReport

Grid = Callable[[Sequence[str], Sequence[Sequence[object]]], str]


def vsr_markdown(reports: Sequence[VsrReport], grid: Grid, shown: Callable[[Estimate], str]) -> Iterator[str]:
    """Blocks of text; `grid` makes a table of names and rows, `shown` the text of a score."""
    if reports:
        yield "## VSR by relation and by training captions"
    for one in reports:
        if one.majority is not None:
            yield f"Always giving the most frequent answer gets {one.majority:.2f} % of {one.task} right."
        if one.accuracy:
            yield f"### {one.task}, accuracy by relation, the most frequent first"
            yield grid(("relation", "category", "test captions", "to train on", *one.models), list(_rows(one, shown)))
        if one.likeness:
            yield (
                f"### {one.task}, accuracy of relations and how often they are trained on\n\nOver relations with more "
                f"than {FREQUENT[one.task]} test captions."
            )
            names = ("model", "relations", "Pearson's r", "p", "Spearman's rho", "p")
            yield grid(names, [
                (model, r.relations, f"{r.pearson:+.2f}", f"{r.pearson_p:.2g}", f"{r.spearman:+.2f}",
                 f"{r.spearman_p:.2g}")
                for model, r in one.likeness.items()
            ])  # fmt: skip
        if one.samples:
            yield f"### {one.task}, accuracy by training captions"
            names = ("model", *(f"{name} ({rows:,})" for name, rows in one.sets.items()))
            yield grid(names, [
                (model, *(shown(curve[name]) if name in curve else "" for name in one.sets))
                for model, curve in one.samples.items()
            ])  # fmt: skip


def vsr_json(one: VsrReport) -> dict[str, Any]:
    """One task for programs; the scores themselves are told with all others."""
    return {
        "task": one.task,
        "majority": one.majority,
        "relations": [{**asdict(relation), "category": relation.category} for relation in one.relations],
        "more_than": FREQUENT[one.task],
        "likeness": {model: asdict(found) for model, found in one.likeness.items()},
        "samples": {
            model: [{"set": name, "rows": one.sets[name], **estimate._asdict()} for name, estimate in curve.items()]
            for model, curve in one.samples.items()
        },
    }


def _rows(one: VsrReport, shown: Callable[[Estimate], str]) -> Iterator[Sequence[object]]:
    for relation in one.relations:
        scores = (one.accuracy.get((model, relation.name)) for model in one.models)
        trained = "" if relation.trained is None else relation.trained
        yield relation.name, relation.category, relation.tested, trained, *(shown(s) if s else "" for s in scores)
