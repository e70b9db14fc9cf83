"""The verb `report`: runs beside the published scores."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from cache import DiskError, UsageError
from cache.output import say

from .progress import CountProgress

PLOT_FORMATS = ("png", "svg")
UNITS = ("pictures", "examples")  # that bootstrap intervals are drawn by
EVAL_SETS = ("fewshot-test", "full", "all", "labelled")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(report)


def report(
    runs: list[str] = typer.Argument(
        None,
        metavar="[NAME=]RUNS...",
        help="Results of `evaluate` or folders of predictions; without: what is published.",
    ),
    annotations: Path = typer.Option(None, "--annotations", metavar="DIR", help="What predictions are scored against."),
    eval_set: str = typer.Option(
        None, "--eval-set", metavar="SET", help="Of predictions of xgqa fewshot-test|full, of xvnli all|labelled."
    ),
    against: str = typer.Option(None, "--against", metavar="MODEL", help="Compare the others with it, by example."),
    draw: str = typer.Option(
        "pictures", "--draw", metavar="|".join(UNITS), help="Of the intervals; examples of a picture depend on it."
    ),
    languages: Path = typer.Option(None, "--languages", metavar="FILE", help="Properties of languages, CSV or JSON."),
    detector_images: Path = typer.Option(
        None,
        "--detector-images",
        metavar="FILE",
        help="What the detector learned from: a list, or image_data.json.",
    ),
    out: Path = typer.Option(None, "--out", "-o", metavar="DIR", help="Write Markdown, CSV, JSON and plots there."),
    plot_format: str = typer.Option("png", "--plot-format", metavar="|".join(PLOT_FORMATS), help="Of the plots."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Lay scores beside the published ones, with averages, few-shot curves, parts, intervals and correlations.

    Exit code 65: something could not be scored or compared.
    """
    if plot_format not in PLOT_FORMATS:
        raise UsageError(f"--plot-format {plot_format} is not one of {', '.join(PLOT_FORMATS)}")
    if draw not in UNITS:
        raise UsageError(f"--draw {draw} is not one of {', '.join(UNITS)}")
    if eval_set not in (None, *EVAL_SETS):
        raise UsageError(f"--eval-set {eval_set} is not one of {', '.join(EVAL_SETS)}")
    if out is not None:
        import matplotlib  # noqa: F401  before the work: it may not be installed

        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out} is a file; give a folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"--out {out} cannot be made: {error.strerror}") from error
    from .report import make_report
    from .report_text import failures, markdown, to_json

    with CountProgress("runs", quiet) as progress:
        found = make_report(runs or (), annotations, eval_set, against, languages, detector_images, draw, progress)
    if out is not None:
        from .report_files import write_report

        files = write_report(found, out, plot_format)
    if as_json:
        print(json.dumps({**to_json(found), "files": [str(file) for file in files] if out else []}, indent=2))
    elif out is not None:
        for text in (*found.warnings, *failures(found)):
            say(text)
        for file in files:
            say(f"wrote {file}")
    else:
        for line in markdown(found).splitlines():
            say(line)
    raise typer.Exit(65 if found.failed else 0)
