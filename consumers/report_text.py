"""A report as Markdown, CSV and JSON. Scores are rounded in Markdown only."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from cache.output import visible

from .published import SOURCES, Place
from .report import Report
from .report_intervals import DRAWS, LEVEL
from .report_scores import Estimate
from .report_tables import Cell, Table, in_order, metric_name
from .report_vsr_text import vsr_json, vsr_markdown


def markdown(report: Report, plots: Sequence[str] = ()) -> str:
    """The report for people; `plots` are the files to show, relative to its own."""
    ours = [table for table in report.paper if table.measured or not report.runs]
    empty = list(dict.fromkeys(table.number for table in report.paper if table not in ours))  # of 19 there are two
    parts = ["# Scores beside the published ones", _legend(report), *(f"- {k}: {v}" for k, v in SOURCES.items())]
    if report.warnings or report.failed:
        parts += ["## To be aware of", *(f"- {visible(one)}" for one in report.warnings)]
        parts += [f"- {visible(one)}" for one in failures(report)]
    parts += [_table(table) for table in ours]
    if empty:
        parts.append(f"Nothing was measured of the published tables {', '.join(empty)}.")
    if report.languages:
        parts += ["## By language", *map(_table, report.languages)]
    if report.parts:
        parts += ["## By part of the examples", *map(_table, report.parts)]
    parts += vsr_markdown(report.vsr, _grid, _estimate)
    if report.intervals:
        parts += _intervals(report)
    if report.correlations:
        parts += ["## Correlation with properties of the languages", _correlations(report)]
    if report.overlaps:
        parts += ["## Test pictures that the detector was trained on", _overlaps(report)]
    if plots:
        parts += ["## Plots", *(f"![{name}]({name})" for name in plots)]
    return _joined(parts)


def failures(report: Report) -> list[str]:
    """A line for each reason, with the first places of it."""
    places: dict[str, list[str]] = {}
    for where, why in report.failed:
        places.setdefault(why.removeprefix(f"{where}: "), []).append(where)
    return [
        f"not scored: {', '.join(where[:3])}{f' and {len(where) - 3:,} more' if len(where) > 3 else ''}: {why}"
        for why, where in places.items()
    ]


def _joined(parts: Iterable[str]) -> str:
    """Blocks with an empty line between them, but for the items of a list."""
    text = ""
    for part in parts:
        text += "" if not text else "\n" if part.startswith("- ") and text.rpartition("\n")[2][:2] == "- " else "\n\n"
        text += part
    return text + "\n"


def _legend(report: Report) -> str:
    cells = [cell for table in (*report.paper, *report.languages) for cell in table.cells.values()]
    lines = [
        f"{len(report.runs):,} runs of {len(report.scores.models)} models. Scores are percent.",
        "A cell is: measured (published, difference). Averages are over languages, unweighted, without English,",
        "and there is none, nor a curve of averages, where a language is missing.",
    ]
    if any("cider" in cell.place.metric for cell in cells):
        lines.append("CIDEr is times 100, as papers print it: up to 1,000.")
    if any(cell.ours and cell.ours.runs > 1 for cell in cells):
        lines.append("± is the standard deviation over runs.")
    return "\n".join(lines)


def _table(table: Table) -> str:
    columns = table.column_names
    names = [*table.rows, *(" ".join(_header(table, column)) for column in columns)]
    rows = []
    for row in table.row_names:
        cells = [_cell(table.cells.get((row, column))) for column in columns]
        rows.append([*(metric_name(v) if n == "metric" else v for n, v in zip(table.rows, row, strict=True)), *cells])
    title = f"### Table {table.number}: {table.title}" if table.number else f"### {table.title}"
    return f"{title}\n\n{_grid(names, rows)}" + (f"\n\n{table.note}" if table.note else "")


def _header(table: Table, column: Sequence[str]) -> list[str]:
    pairs = zip(table.columns, column, strict=True)
    return [metric_name(value) if name == "metric" else value for name, value in pairs]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    ours = _estimate(cell.ours) if cell.ours else "-"
    if cell.published is None:
        return ours
    deviation = cell.published.deviation
    published = f"{cell.published.value:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")
    return f"{ours} ({published}, {_signed(cell.difference)})" if cell.ours else f"- ({published})"


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # never -0.00


def _estimate(one: Estimate) -> str:
    return f"{one.value:.2f}" + (f" ± {one.deviation:.2f}" if one.deviation is not None else "")


def _grid(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [[visible(str(cell)).replace("|", r"\|") for cell in line] for line in (names, ["---"] * len(names), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _intervals(report: Report) -> list[str]:
    against = report.intervals[0].against
    rows = [
        (*one.place[:4], metric_name(one.place.metric), one.model, _signed(one.difference),
         f"{_signed(one.low)} to {_signed(one.high)}", one.only, one.other, one.n, one.drawn)
        for one in sorted(report.intervals, key=lambda one: (one.place.task, in_order(one.place)))
    ]  # fmt: skip
    names = "setup task language shots metric model difference".split()
    names += [f"{LEVEL} %", "only it", "only other", "examples", "drawn"]
    text = (
        f"Points above {visible(against)}, on the same examples; {DRAWS:,} draws with replacement of groups of examples"
        " that share pictures, or of single examples where so asked; `drawn` is how many there are. "
        "`only it` is how many examples this model alone has right, `only other` how many the other alone. Of several "
        "runs of a model the first is taken."
    )
    return [f"## Differences from {visible(against)}", text, _grid(names, rows)]


def _correlations(report: Report) -> str:
    text = "Pearson's r over languages, without English, of zero-shot scores.\n\n"
    rows = [
        (one.property, one.task, metric_name(one.metric), one.model, len(one.points), _r(one.r), _r(one.r_log))
        for one in report.correlations
    ]
    return text + _grid(("property", "task", "metric", "model", "languages", "r", "r with log10"), rows)


def _r(value: float | None) -> str:
    return "-" if value is None else _signed(value)


def _overlaps(report: Report) -> str:
    rows = [
        (one.task, one.part or "all", f"{one.pictures:,}", f"{one.shared:,}", ", ".join(one.some))
        for one in report.overlaps
    ]
    return _grid(("task", "part", "test pictures", "among the detector's", "such as"), rows)


def to_json(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "sources": SOURCES,
        "runs": len(report.runs),
        "tables": [
            {"table": table.number, "title": table.title, "note": table.note, "cells": [*map(_cell_facts, cells)]}
            for table in (*report.paper, *report.languages, *report.parts)
            if (cells := list(table.cells.values()))
        ],
        "scores": [*_scores(report)],
        "intervals": [{**asdict(one), "place": one.place._asdict()} for one in report.intervals],
        "correlations": [asdict(one) for one in report.correlations],
        "overlaps": [asdict(one) for one in report.overlaps],
        "vsr": [*map(vsr_json, report.vsr)],
        "warnings": report.warnings,
        "failed": [{"where": where, "why": why} for where, why in report.failed],
    }


def _cell_facts(cell: Cell) -> dict[str, Any]:
    ours, published = cell.ours, cell.published
    return {
        "model": cell.model, **cell.place._asdict(), "measured": ours and ours.value,
        "deviation": ours and ours.deviation, "runs": ours.runs if ours else 0,
        "published": published and published.value, "difference": cell.difference,
        "source": published and f"{published.source} {published.table}",
    }  # fmt: skip


def _scores(report: Report) -> Iterable[dict[str, Any]]:
    for (model, place), values in report.scores.measured.items():
        for run, value in enumerate(values):
            yield {"model": model, **place._asdict(), "run": run, "value": value, "n": report.sizes[place]}


def scores_csv(report: Report) -> str:
    """Every measured score, a row each."""
    return _csv(("model", *Place._fields, "run", "value", "n"), _scores(report))


def tables_csv(report: Report) -> str:
    """Every cell of the published tables and of those by language and part."""
    rows = (
        {"table": table.number or table.title, **_cell_facts(cell)}
        for table in (*report.paper, *report.languages, *report.parts)
        for cell in table.cells.values()
    )
    facts = ("measured", "deviation", "runs", "published", "difference", "source")
    return _csv(("table", "model", *Place._fields, *facts), rows)


def _csv(names: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
