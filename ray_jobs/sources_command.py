"""The verbs `sources list` and `sources check`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from cache.output import say, table

if TYPE_CHECKING:
    from .check import Report

app = typer.Typer(rich_markup_mode=None, help="Where images can come from, and what of a dataset is on disk.")


def register(to: typer.Typer) -> None:
    """Add the verbs."""
    to.add_typer(app, name="sources")


@app.command("list")
def list_sources(as_json: bool = typer.Option(False, "--json", help="Print everything as JSON.")) -> None:
    """List the sources: what each expects at its path, its keys and the published numbers of pictures.

    SOURCE is NAME:PATH, with options as in NAME:PATH?option=value&option=value.
    """
    from .sources import SOURCES, source_class

    rows = []
    for cls in map(source_class, SOURCES):
        about = {name: getattr(cls, name) for name in ("name", "title", "expects", "key_form")}
        rows.append({**about, "options": dict(cls.options), "counts": dict(cls.counts)})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        say(f"{row['name']}: {row['title']}")
        say(f"  expects  {row['expects']}")
        say(f"  key      {row['key_form']}")
        if known := [f"{part} {count:,}" for part, count in row["counts"].items() if count]:
            say(f"  pictures {', '.join(known)}")
        for option, text in row["options"].items():
            say(f"  ?{option}=  {text}")


@app.command()
def check(
    dataset: str = typer.Argument(..., metavar="DATASET", help="A name of `roivault sources list`."),
    path: str = typer.Argument(..., metavar="PATH", help="Where it is, with options as in PATH?split=val2014."),
    annotations: str = typer.Option(
        None, "--annotations", metavar="DIR", help="Annotation files; the pictures that they name must be there."
    ),
    decode: bool = typer.Option(False, "--decode", help="Decode every picture instead of looking at its first bytes."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON, with every missing key."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress, and only the verdict."),
) -> None:
    """Say what of a dataset is on disk: expected and found, missing, extra, unreadable, duplicate.

    Exit code 0: complete, 65: something is missing or cannot be read, 66: nothing is at PATH.
    """
    from .check import check as run
    from .sources import source_class

    source_class(dataset)
    report = run(f"{dataset}:{path}", annotations, decode, quiet)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        if not quiet:
            _show(report)
        say(report.verdict)
    raise typer.Exit(report.exit_code)


def _show(report: Report) -> None:
    from .check import MOST_SHOWN

    rows = [(name, p.expected or "", p.found, _state(p.complete, p.found)) for name, p in report.parts.items()]
    table(("part", "expected", "found", ""), rows, f"{report.source} in {report.path}")
    if report.annotations:
        rows = [(name, n["expected"], n["missing"]) for name, n in report.annotations.items()]
        table(("annotations", "pictures", "missing"), rows)
        say(f"extra: {report.extra:,} that the annotations do not name")
    lists = {
        "missing": report.missing,
        "cannot be read": [f"{f.source}: {f.kind}: {f.message}" for f in report.unreadable],
        "duplicate": [f"{f.source}: {f.message}" for f in report.duplicates],
    }
    for title, entries in lists.items():
        for entry in entries[:MOST_SHOWN]:
            say(f"{title}: {entry}")
        if len(entries) > MOST_SHOWN:
            say(f"{title}: ... and {len(entries) - MOST_SHOWN:,} more; --json lists all")
    if report.others:
        say(f"passed over, not of this dataset: {report.others:,}, such as {report.first_others[0]}")


def _state(complete: bool, found: int) -> str:
    return "not here" if not found else "complete" if complete else "incomplete"
