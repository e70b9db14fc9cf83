"""Verbs that make stores of stores, at other places too, and whole ones: `merge`, `subset`, `publish` and `repair`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .errors import UsageError
from .keys import read_keys
from .output import say, size
from .progress import ByteProgress
from .targets import on_this_machine

if TYPE_CHECKING:
    from .merge import MergeReport
    from .repair import RepairReport
    from .subset import SubsetReport

_OUTPUT = typer.Option(..., "--output", "-o", metavar="NEW", help="The store to make.")
_JSON = typer.Option(False, "--json", help="Print the report as JSON.")
_QUIET = typer.Option(False, "--quiet", "-q", help="No progress; print only what is lost.")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    for verb in (merge, subset, repair, publish):
        app.command()(verb)


def merge(
    stores: list[str] = typer.Argument(..., metavar="STORE...", help="Stores, shards of one, or quoted patterns."),
    output: Path = _OUTPUT,
    copy: bool = typer.Option(False, "--copy", help="Copy shards also where NEW can share them with the stores."),
    as_json: bool = _JSON,
    quiet: bool = _QUIET,
) -> None:
    """Make one store of several that were made by the same choices; the stores themselves stay as they are.

    On one disk NEW shares the files of their shards, which never change: this takes no room, and the stores may be
    removed. A key that two stores have different records of is an error; of a record and a failure the record is taken.
    """
    from .merge import merge as run

    with ByteProgress("merged", as_json or quiet) as progress:
        report = run(stores, output, copy, progress)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not quiet:
        _print_merge(report)


def _print_merge(report: MergeReport) -> None:
    for source in report.sources:
        say(f"{source['path']}: {source['records']:,} records, {source['failures']:,} failures")
    say(f"-> {report.destination}: {report.records:,} records, {report.failures:,} failures, {report.shards:,} shards")
    if report.duplicates:
        say(f"records that several stores have, counted once: {report.duplicates:,} more")
    if report.overruled:
        say(f"failures that gave way to what another store has: {report.overruled:,}")
    if report.linked:
        say(f"shards that share their bytes with the stores' own: {report.linked:,}")


def subset(
    store_and_keys: list[str] = typer.Argument(..., metavar="STORE [KEY...]", help="A store, and keys it has."),
    output: Path = _OUTPUT,
    ids: Path = typer.Option(None, "--ids", metavar="FILE", help="Keys, one a line; NEW has them in this order."),
    pattern: str = typer.Option(None, "--pattern", "-p", metavar="GLOB", help="Keys that match, such as 'a/*'."),
    missing: str = typer.Option(
        "error", "--missing", metavar="error|skip", help="What to do about keys that STORE has neither way."
    ),
    as_json: bool = _JSON,
    quiet: bool = _QUIET,
) -> None:
    """Make a store of some of another's keys, byte for byte; with no keys named, of all that it holds.

    NEW has no room taken by what was replaced or is damaged. Records that cannot be read are left out and listed, and
    make the exit code 65; so do keys that STORE lacks, and then NEW is not made unless --missing is skip.
    """
    from .subset import subset as run

    store, *keys = store_and_keys
    if (ids is not None) + (pattern is not None) + bool(keys) > 1:
        raise UsageError("keys, --ids and --pattern say the same thing: give one of them")
    chosen = read_keys(ids) if ids is not None else keys or None
    with ByteProgress("written", as_json or quiet) as progress:
        report = run(store, output, chosen, pattern, missing, progress)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print_subset(report, quiet)
    raise typer.Exit(report.exit_code)


def _print_subset(report: SubsetReport, quiet: bool) -> None:
    for key in report.missing:
        say(f"missing: {key}")
    for key, why in report.damaged.items():
        say(f"damaged: {key}: {why}")
    if not report.made:
        say(f"missing keys: {len(report.missing):,}; nothing was made, --missing skip goes on without them")
    elif not quiet:
        say(f"{report.source} -> {report.destination}: {report.records:,} records, {report.failures:,} failures")
        if report.missing or report.damaged:
            say(f"missing keys: {len(report.missing):,}, damaged: {len(report.damaged):,}")


def repair(
    store: str = typer.Argument(..., metavar="STORE", help="A store that nobody is writing to."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be done."),
    like: Path = typer.Option(
        None,
        "--like",
        metavar="STORE",
        help="Of the same job, to take from how STORE was made.",
    ),
    as_json: bool = _JSON,
    quiet: bool = _QUIET,
) -> None:
    """Mend a store: keep all that can be read, and name the keys that are lost; those make the exit code 65.

    Damaged files stay in the folder as NAME.damaged. The line that made the store does exactly the lost keys again.
    """
    from .repair import repair as run

    with ByteProgress("examined", as_json or quiet) as progress:
        report = run(on_this_machine(store), like, dry_run, progress)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print_repair(report, quiet)
    raise typer.Exit(report.exit_code)


def _print_repair(report: RepairReport, quiet: bool) -> None:
    for action in () if quiet else report.actions:
        say(action)
    for key in report.lost:
        say(f"lost: {key}")
    if report.unnamed:
        say(f"lost: {report.unnamed:,} more, whose keys cannot be read; what earlier shards have of these holds again")
    for file in report.uncounted:
        say(f"lost: whatever else was in {file}; nothing tells what that was")
    if quiet:
        return
    for file in report.aside:
        say(f"kept: {file}; delete it when nothing in it is of use any more")
    state = "nothing is to be mended" if not report.actions else "this would be done" if report.dry_run else "mended"
    say(f"{state}: {report.records:,} records and {report.failures:,} failures; lost keys: {len(report.lost):,}")
    if report.lost or report.unnamed or report.uncounted:
        say("the line that made the store does what was lost again")


def publish(
    store: str = typer.Argument(..., metavar="STORE", help="A store on this machine."),
    url: str = typer.Argument(..., metavar="URL", help="Where to: s3://bucket/name.roi, file:///shared/name.roi, ..."),
    sealed_only: bool = typer.Option(False, "--sealed-only", help="Leave out a shard that is still being written."),
    verify: bool = typer.Option(False, "--verify", help="Read everything back and compare checksums."),
    as_json: bool = _JSON,
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary."),
) -> None:
    """Copy a store to where others open it by URL; the same line again brings what was added, or goes on.

    What is there whole is not copied again. Readers see the new state at once, when all of it is there.
    """
    from .publish import publish as run

    with ByteProgress("published", as_json or quiet) as progress:
        report = run(on_this_machine(store), url, sealed_only, verify, progress)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not quiet:
        say(f"{report.store} -> {report.url}")
        checked = "read back and compared" if report.verified else "their sizes and indexes compared"
        say(f"{report.shards:,} shards, {report.copied:,} copied ({size(report.bytes)}), {checked}")
