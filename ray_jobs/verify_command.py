"""The verb `verify`: that of the cache, and with `--source` the comparison with the images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cache import UsageError
from cache.commands import DIGEST, IDS, JSON, QUIET, STORES
from cache.commands import verify as verify_stores
from cache.output import say
from cache.progress import Counting

if TYPE_CHECKING:
    from .source_digests import DigestReport


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(verify)


def verify(
    stores: list[str] = STORES,
    ids: Path = IDS,
    digest: bool = DIGEST,
    source: str = typer.Option(
        None, "--source", metavar="SOURCE", help="Compare the images there with those the records were made from."
    ),
    key: str = typer.Option(None, "--key", metavar="path|name|stem", help="Key rule of --source; default the store's."),
    as_json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Check that stores are whole, or with --source that their images are still the same; 65 when something is not."""
    if source is None:
        if key is not None:
            raise UsageError("--key goes with --source")
        verify_stores(stores, ids, digest, as_json, quiet)
        return
    if ids is not None or digest:
        raise UsageError("--source compares images alone: give --ids or --digest in a run of their own")
    from .source_digests import compare_digests

    tell = {} if as_json else {"on_difference": lambda kind, key, about: say(f"{kind}: {key} ({about})")}
    with Counting(None, as_json or quiet) as progress:
        report = compare_digests(stores, source, key, progress=progress, **tell)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not (quiet and report.ok):
        _print(report)
    raise typer.Exit(report.exit_code)


def _print(report: DigestReport) -> None:
    say(f"{'ok' if report.ok else 'NOT ok'}: {report.same:,} of {report.listed:,} images are what the records were "
        f"made from; {report.changed:,} changed, {report.missing:,} missing, {report.unreadable:,} unreadable, "
        f"{report.extra:,} without a record")  # fmt: skip
    for count, text in (
        (report.failed, "have a failure in the store"),
        (report.duplicates, "repeat a key of an earlier one"),
        (report.without_digest, "have a record that does not say what it was made from"),
    ):
        if count:
            say(f"{count:,} images {text}")
