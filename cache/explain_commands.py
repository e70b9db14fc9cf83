"""Verbs that explain caches: `stats` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import DataError, UsageError
from .keys import read_keys
from .output import say, size, table
from .targets import is_store

if TYPE_CHECKING:
    from .causes import Cause
    from .compare import Comparison
    from .contents import Contents
    from .stats import Stats

PLOT_FORMATS = ("png", "svg")
_JSON = typer.Option(False, "--json", help="Print the result as JSON.")
_QUIET = typer.Option(False, "--quiet", "-q", help="No progress.")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(stats)
    app.command()(compare)


def stats(
    stores: list[str] = typer.Argument(..., metavar="STORE...", help="Stores, or one cache of another system."),
    sample: int = typer.Option(None, "--sample", metavar="N", min=1, help="Look at N images, always the same ones."),
    top: int = typer.Option(20, "--top", min=1, help="Names and sizes to list."),
    plots: Path = typer.Option(None, "--plots", metavar="DIR", help="Also draw the distributions, into a folder."),
    plot_format: str = typer.Option("png", "--plot-format", metavar="|".join(PLOT_FORMATS), help="Of the plots."),
    from_format: str = typer.Option(None, "--from", metavar="F", help="Format, when the content does not tell."),
    as_json: bool = _JSON,
    quiet: bool = _QUIET,
) -> None:
    """Say what the records are like: regions, classes, features, boxes, sizes, and what looks wrong.

    Exit code 65: some cannot be read, or there are none.
    """
    if plot_format not in PLOT_FORMATS:
        raise UsageError(f"--plot-format {plot_format} is not one of {', '.join(PLOT_FORMATS)}")
    if plots is not None:
        import matplotlib  # noqa: F401  before the work: it may not be installed

        if plots.exists() and not plots.is_dir():
            raise UsageError(f"--plots {plots} is a file; give a folder")
    from .contents import open_contents
    from .stats import collect

    contents = open_contents(stores, from_format)
    with _counting(contents, sample, as_json or quiet) as progress:
        found = collect(contents, sample, progress)
    files = []
    if plots is not None and found.records:
        from .plots import plot

        files = [str(path) for path in plot(found, plots, plot_format)]
    if as_json:
        print(json.dumps({**found.to_dict(top), "plots": files}, indent=2))
    else:
        _print_stats(found, top)
        for path in files:
            say(f"wrote {path}")
    if found.unreadable or not found.records:
        raise typer.Exit(DataError.exit_code)


def _counting(contents: Contents, sample: int | None, quiet: bool) -> Any:
    from .progress import Counting

    total = contents.count()
    return Counting(total if sample is None else min(sample, total or sample), quiet)


def _print_stats(found: Stats, top: int) -> None:
    from .stats import MEASURES, TROUBLES

    seen = "" if found.records_in_all in (None, found.records) else f" of {found.records_in_all:,}"
    say(f"{found.name}: {found.records:,}{seen} records")
    for name, counts in (("features", found.dtypes), ("dimension", found.dims), ("fields", found.fields)):
        if counts:
            say(f"  {name:<10}", ", ".join(_of_all(value, n, found.records) for value, n in counts.most_common(12)))
    if found.dead:
        say("  dead      ", f"{found.dead:,} features are zero in every region")
    rows = [
        (MEASURES[name], *(_number(value, name) for value in list(numbers.to_dict().values())[1:]))
        for name, numbers in found.measures.items()
        if numbers.count
    ]
    table(("", "min", "mean", "median", "95 %", "max"), rows)
    if len(found.sizes) <= 3 and found.sizes:
        say("image sizes", ", ".join(f"{w}x{h} ({n:,})" for (w, h), n in found.sizes.most_common()))
    for what in ("classes", "attributes"):
        if names := found.named(what, top):
            table((what, "regions"), [(name, f"{count:,}") for name, count in names])
    for name, text in TROUBLES.items():
        if count := found.troubles[name]:
            regions = f" ({found.troubled_regions[name]:,} regions)" if found.troubled_regions[name] else ""
            say(f"{count:,} records {text}{regions}, such as {', '.join(map(repr, found.examples[name][:3]))}")
    for hint in found.traits.hints():
        say(hint)
    for kind, count in found.unreadable.items():
        say(f"{count:,} records could not be read: {kind}, such as {found.examples[f'unreadable: {kind}'][0]!r}")
    if not found.records:
        say("no record could be looked at")


def _of_all(value: object, count: int, records: int) -> str:
    return str(value) if count == records else f"{value} (in {count:,})"


def _number(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    return size(int(value)) if measure == "bytes" else f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def compare(
    a: str = typer.Argument(..., metavar="A", help="A store, or the cache of another system."),
    b: str = typer.Argument(..., metavar="B", help="The same; one of the two must be a store."),
    sample: int = typer.Option(None, "--sample", metavar="N", min=1, help="Compare N images, always the same ones."),
    ids: Path = typer.Option(None, "--ids", metavar="FILE", help="Compare these keys of A, one a line."),
    from_format: str = typer.Option(None, "--from", metavar="F", help="Format of what is no store."),
    fail_on_difference: bool = typer.Option(False, "--fail-on-difference", help="Exit code 65 when they differ."),
    as_json: bool = _JSON,
    quiet: bool = _QUIET,
) -> None:
    """Say how two caches of the same images differ, and the likely causes with the evidence.

    Exit code 0: they could be compared, 65: they have no image in common.
    """
    from .causes import causes
    from .compare import compare as run
    from .contents import ForeignContents, open_contents

    if ids is not None and sample is not None:
        raise UsageError("give --ids or --sample, not both")
    chosen = None if ids is None else read_keys(ids)
    sides = [open_contents([path], None if is_store(path) else from_format) for path in (a, b)]
    streamed = next((side for side in sides if isinstance(side, ForeignContents)), sides[0])
    with _counting(streamed, len(chosen) if chosen is not None else sample, as_json or quiet) as progress:
        report = run(*sides, sample, chosen, progress)
    likely = causes(report)
    if as_json:
        print(json.dumps({**report.to_dict(), "causes": [cause.to_dict() for cause in likely]}, indent=2))
    else:
        _print_comparison(report)
        print_causes(likely)
    failed = not report.compared or (fail_on_difference and report.differences_found())
    raise typer.Exit(DataError.exit_code if failed else 0)


def _print_comparison(report: Comparison) -> None:
    for letter, name, kind, count in zip("AB", report.names, report.formats, report.records, strict=True):
        say(f"{letter}  {name}: {'' if count is None else f'{count:,} records, '}{kind}")
    lost = [f"{'?' if n is None else f'{n:,}'} only in {side}"
            for n, side in ((report.missing_in_b, "A"), (report.missing_in_a, "B"))]  # fmt: skip
    say(f"{report.compared:,} images in both, {report.equal:,} of them equal; {', '.join(lost)}")
    for (side, kind), count in report.unreadable.items():
        say(f"{count:,} records of {side.upper()} could not be read: {kind}")
    for side, other in (("a", "B"), ("b", "A")):
        if examples := report.examples.get(f"missing_in_{side}"):
            say(f"only in {other}, for instance: {', '.join(map(repr, examples[:3]))}")
    if report.compared:
        a, b, matched, _ = report.regions
        say(f"{a:,} regions in A, {b:,} in B, {matched:,} matched, by {_counts(report.matched_by)} (images)")
        for what in ("image", "selection", "boxes", "features"):
            found = [(finding, n) for finding, n in report.found.most_common(30) if finding[0] == what]
            say(f"  {what:<10}", ", ".join(f"{_verdict(*finding[1:])} {n:,}" for finding, n in found[:6]))
        for what, labels in (("classes", report.classes), ("attributes", report.attributes)):
            if labels.regions:
                say(f"  {what:<10}", f"the same id in {labels.same_id:,} of {labels.regions:,} regions")


def _counts(counts: Any) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.most_common())


def _verdict(verdict: str, side: str, note: str) -> str:
    more = ", ".join(part for part in (side and f"in {side.upper()}", note) if part)
    return f"{verdict} ({more})" if more else verdict


def print_causes(likely: list[Cause]) -> None:
    """Each with its evidence."""
    for cause in likely:
        say(f"{cause.name}: {cause.text}")
        for line in cause.evidence:
            say(f"    {line}")
