"""The verb `identify`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from cache import DataError, UsageError
from cache.explain_commands import print_causes
from cache.output import say, table

if TYPE_CHECKING:
    from .identify import Identification


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(identify)


def identify(
    stores: list[str] = typer.Argument(
        ..., metavar="STORE...", help="The store; convert another system's cache first."
    ),
    images: str = typer.Option(..., "--images", metavar="SOURCE", help="Where its images are; a few are enough."),
    model: str = typer.Option(
        None, "--model", metavar="NAME", help="Did it make them? Default: try all installed ones."
    ),
    weights: str = typer.Option(None, "--weights", metavar="FILE", help="A checkpoint in place of the model's own."),
    sample: int = typer.Option(8, "--sample", metavar="N", min=1, help="Images to extract again."),
    device: str = typer.Option("auto", "--device", metavar="auto|cpu|cuda|cuda:N", help="Where the model runs."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Say which model made a store, by extracting a few of its images again; 65 when that cannot be told."""
    from cache.contents import KeyedContents, open_contents

    from .identify import identify as run

    cache = open_contents(stores)
    if not isinstance(cache, KeyedContents):
        raise UsageError(f"identify takes stores: `roivault convert {cache.name} -o NAME.roi` first")
    tell = {} if as_json or quiet else {"progress": lambda text: print(f"trying {text}", file=sys.stderr, flush=True)}
    found = run(cache, images, model, weights, sample, device, **tell)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found)
    raise typer.Exit(0 if found.decided else DataError.exit_code)


def _print(found: Identification) -> None:
    say(f"{found.cache}: {len(found.compared)} of the {found.found:,} images found in {found.images} were compared")
    best = found.best
    if best and best.made_it:
        change = f" with one setting changed: {best.change}" if best.change else ""
        say(f"made by {best.model}{change}{best.verdict.removeprefix('yes')}")
    else:
        say("made by none of the models that were tried" if found.decided else "which model made it cannot be told")
    for hint in found.hints:
        say(hint)
    rows = [(trial.model, trial.change or "as it is", trial.verdict, f"{trial.same:.0%}") for trial in found.trials]
    table(("model", "change", "made it", "same features"), rows)
    for name, reason in found.skipped.items():
        say(f"{name}: not tried, {reason}")
    for key, reason in found.failures.items():
        say(f"could not be used: {key}: {reason}")
    if best:
        print_causes(best.likely)
