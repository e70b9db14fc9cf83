"""The verb `convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import InputNotFound, UsageError
from .formats import FORMATS
from .output import say
from .progress import Counting
from .remote import is_url

if TYPE_CHECKING:
    from .convert import ConvertReport
    from .formats.base import Problem

_NAMES = ", ".join(["store", *FORMATS])


def convert(
    source: str = typer.Argument(..., metavar="SRC", help="A store, its URL, or the cache of another system."),
    output: Path = typer.Option(..., "--output", "-o", metavar="DST", help="What to make: NAME.roi is a store."),
    from_format: str = typer.Option(None, "--from", metavar="F", help=f"Format of SRC, when it cannot tell: {_NAMES}."),
    to_format: str = typer.Option(None, "--to", metavar="F", help="Format of DST, when its name does not tell."),
    dtype: str = typer.Option(None, "--dtype", metavar="D", help="Features of a store: float16, float32 or bfloat16."),
    classes: Path = typer.Option(None, "--classes", metavar="FILE", help="Names of the classes of SRC, one a line."),
    attributes: Path = typer.Option(None, "--attributes", metavar="FILE", help="The same of its attributes."),
    class_offset: int = typer.Option(
        0, "--class-offset", metavar="N", help="Add N to every class id; -1 when SRC counts background as class 0."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress; print only what was left out."),
) -> None:
    """Turn the cache of another system into a store, or a store into one, or a store into one of another dtype.

    What has no place in DST is listed. Damaged records are left out, listed, and make the exit code 65.
    """
    from .convert import convert as run

    words = {name: _read_names(file) for name, file in (("classes", classes), ("attributes", attributes)) if file}
    listen: dict[str, Any] = {} if as_json else {"on_problem": _print_problem}
    source = source if is_url(source) else Path(source)
    with Counting(None, as_json or quiet, "records") as progress:
        listen["on_progress"] = lambda records: progress(records - progress.done)
        report = run(source, output, from_format, to_format, dtype, words, class_offset, **listen)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    elif not quiet:
        _print(report)
    raise typer.Exit(report.exit_code)


def _print_problem(problem: Problem) -> None:
    key = f" ({problem.key})" if problem.key and repr(problem.key) not in problem.where else ""
    say(f"left out: {problem.where}{key}: {problem.kind}: {problem.why}")


def _print(report: ConvertReport) -> None:
    say(f"{report.source} ({report.source_format}) -> {report.destination} ({report.destination_format})")
    say(f"{report.records:,} records, features {report.feature_dtype}; {report.left_out:,} left out")
    if report.failures:
        say(f"{report.failures:,} failures were passed on")
    for name, count in report.without_place.items():
        say(f"no place for {name}: in {count:,}")
    for side, text in report.conventions.items():
        say(f"ids, {side}: {text}")
    for remark in report.remarks:
        say(f"note: {remark}")


def _read_names(path: Path) -> list[str]:
    """One name a line; of `a,b` (spellings of one name) the first."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputNotFound(f"{path}, the list of names, does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a list of names: {error}") from None
    names = [line.split(",")[0].strip().lower() for line in lines]
    if not names or not all(names):
        raise UsageError(f"{path}, line {names.index('') + 1 if names else 1}: there is no name on it")
    return names
