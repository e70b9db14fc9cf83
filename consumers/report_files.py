"""A report in a folder: Markdown for people, CSV and JSON for programs, and plots."""

from __future__ import annotations

import json
from pathlib import Path

from .report import Report
from .report_plots import draw
from .report_text import markdown, scores_csv, tables_csv, to_json


def write_report(report: Report, folder: Path, form: str = "png") -> list[Path]:
    """Write report.md, report.json, scores.csv, tables.csv and the plots there are data for; returns the files.

    Args:
        folder: is there.

    Raises: OSError: the disk.
    """
    plots = draw(report, folder, form)
    texts = {
        "report.md": markdown(report, [plot.name for plot in plots]),
        "report.json": json.dumps(to_json(report), indent=2) + "\n",
        "scores.csv": scores_csv(report),
        "tables.csv": tables_csv(report),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return [*(folder / name for name in texts), *plots]
