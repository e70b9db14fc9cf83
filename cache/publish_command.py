"""The verb `publish`."""

from __future__ import annotations

import json

import typer

from .output import say, size
from .progress import ByteProgress
from .targets import on_this_machine


def publish(
    store: str = typer.Argument(..., metavar="STORE", help="A store on this machine."),
    url: str = typer.Argument(..., metavar="URL", help="Where to: s3://bucket/name.roi, file:///shared/name.roi, ..."),
    sealed_only: bool = typer.Option(False, "--sealed-only", help="Leave out a shard that is still being written."),
    verify: bool = typer.Option(False, "--verify", help="Read everything back and compare checksums."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary."),
) -> None:
    """Copy a store to where others open it by URL; the same line again brings what was added, or goes on.

    What is there whole is not copied again. Readers see the new state at once, when all of it is there.
    """
    from .publish import publish as run

    with ByteProgress("published", quiet) as progress:
        report = run(on_this_machine(store), url, sealed_only, verify, progress)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not quiet:
        say(f"{report.store} -> {report.url}")
        checked = "read back and compared" if report.verified else "their sizes and indexes compared"
        say(f"{report.shards:,} shards, {report.copied:,} copied ({size(report.bytes)}), {checked}")
