"""Verbs of jobs: `extract` and `demo`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cache import UsageError
from cache.output import say

from .options import (
    BOX_FORMATS,
    BOX_UNITS,
    ENGINES,
    KEY_RULES,
    ORIENTATIONS,
    PRECISIONS,
    STORED_DTYPES,
    TRUNCATED,
    ExtractOptions,
)

if TYPE_CHECKING:
    from .tally import Summary


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(extract)
    app.command()(demo)


def _choice(option: str, values: Sequence[str], help: str, default: str | None = None):
    return typer.Option(default, option, metavar="|".join(values), help=help)


def extract(
    source: list[str] = typer.Argument(
        ...,
        metavar="SOURCE",
        help="A folder, a picture, a quoted pattern such as 'a/**/*.jpg', a list.txt, or NAME:PATH with a name of "
        "`roivault sources list`, such as coco:DIR or archive:photos.zip.",
    ),
    output: str = typer.Option(..., "--output", "-o", metavar="STORE", help="Made, or continued where it ended."),
    model: str = typer.Option(..., "--model", metavar="NAME", help="A detector of `roivault models`."),
    weights: str = typer.Option(None, "--weights", metavar="FILE", help="A checkpoint in place of the model's own."),
    boxes: str = typer.Option(None, "--boxes", metavar="FILE", help="Describe these boxes instead of detecting."),
    box_format: str = _choice("--box-format", BOX_FORMATS, "How they are written; default xyxy, in COCO files xywh."),
    box_units: str = _choice("--box-units", BOX_UNITS, "Of the picture, or shares of its sides; default pixels."),
    engine: str = _choice("--engine", ENGINES, "What runs the job; default ray with --address or several GPUs."),
    address: str = typer.Option(None, "--address", metavar="auto|HOST:PORT", help="Of the Ray cluster to run on."),
    writers: int = typer.Option(1, "--writers", min=1, metavar="N", help="Processes that write the store, with Ray."),
    models_per_gpu: int = typer.Option(1, "--models-per-gpu", min=1, help="Models that share a GPU, with Ray."),
    timeout: float = typer.Option(60, "--timeout", min=1, metavar="S", help="Longest for one picture, with Ray."),
    device: str = typer.Option("auto", "--device", metavar="auto|cpu|cuda|cuda:N", help="Where the model runs."),
    threads: int = typer.Option(None, "--threads", min=1, help="CPU threads; default all."),
    precision: str = _choice("--precision", PRECISIONS, "Number format of the model.", "auto"),
    dtype: str = _choice("--dtype", STORED_DTYPES, "Number format of stored features; default float16."),
    orientation: str = _choice("--orientation", ORIENTATIONS, "EXIF orientation; default apply."),
    truncated: str = _choice("--truncated", TRUNCATED, "Pictures that end early; default fail."),
    key: str = _choice("--key", KEY_RULES, "Key: path in SOURCE, name, or name without suffix; default path."),
    work: str = typer.Option(None, "--work", metavar="DIR", help="Folder here to work in, for a URL or --writers."),
    shard_size: str = typer.Option("8GiB", "--shard-size", metavar="SIZE", help="Largest file of the store."),
    limit: int = typer.Option(None, "--limit", min=1, help="Only the first N of the listing."),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Try earlier failures again."),
    refresh_changed: bool = typer.Option(False, "--refresh-changed", help="Redo pictures whose file has changed."),
    max_failures: str = typer.Option("1%", "--max-failures", metavar="N|P%", help="More of them: exit code 65."),
    metrics_port: str = typer.Option(
        None, "--metrics-port", metavar="[HOST:]PORT", help="Metrics for Prometheus; HOST is 127.0.0.1 by default."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary."),
) -> None:
    """Extract the regions of pictures into a store; the same line again continues it."""
    if len(source) > 1:
        raise UsageError(
            f"SOURCE is one place, but {len(source)} were given; quote a pattern: '*.jpg', '{{a,b}}/*.jpg'"
        )
    options = ExtractOptions(
        source=source[0],
        output=output,
        model=model,
        weights=weights,
        boxes=boxes,
        box_format=box_format,
        box_units=box_units,
        engine=engine,
        address=address,
        writers=writers,
        models_per_gpu=models_per_gpu,
        timeout=timeout,
        device=device,
        threads=threads,
        precision=precision,
        dtype=dtype,
        orientation=orientation,
        truncated=truncated,
        key=key,
        work=work,
        shard_size=shard_size,
        limit=limit,
        retry_failed=retry_failed,
        refresh_changed=refresh_changed,
        max_failures=max_failures,
        metrics_port=metrics_port,
        quiet=quiet,
    )
    from .extract import run_extract

    summary = run_extract(options)
    _show(summary, as_json, quiet)
    raise typer.Exit(summary.exit_code)


def demo(
    out: Path = typer.Option(Path("demo"), "--out", "-o", help="Folder to write to."),
    photos: Path = typer.Option(None, "--photos", help="A folder of your pictures; default drawn scenes."),
    count: int = typer.Option(24, "--count", min=1, help="How many scenes to draw."),
    seed: int = typer.Option(0, "--seed", min=0, help="Which scenes to draw."),
    train: bool = typer.Option(True, "--train/--no-train", help="Go on to train a small encoder on drawn scenes."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary."),
) -> None:
    """Pictures in, a store and a page to look at out, with the small model that comes along.

    Then a small encoder is trained on captions about drawn scenes, from their regions, and tested on others.
    """
    from .demo import run_demo

    summary, page = run_demo(out, photos, count, seed, quiet)
    going_on = train and not photos and not summary.exit_code
    if not as_json or not going_on:
        _show(summary, as_json, quiet, page=str(page))
    if going_on:
        _train(out / "training", summary, page, as_json, quiet)
    raise typer.Exit(summary.exit_code)


def _train(out: Path, summary: Summary, page: Path, as_json: bool, quiet: bool) -> None:
    """The demo's second part, where what it needs is installed."""
    from .doctor import install_hint

    scores, missing = {}, [name for name in ("transformers", "tokenizers") if find_spec(name) is None]
    if missing:
        print(f"To go on and train an encoder: {install_hint(missing[0])}", file=sys.stderr)
    else:
        from .demo_training import show, train_demo

        scores = train_demo(out, quiet=quiet)
        if not as_json and not quiet:
            show(scores)
    if as_json:
        print(json.dumps({**summary.as_dict(), "page": str(page), "training": scores}, indent=2))


def _show(summary: Summary, as_json: bool, quiet: bool, **more: str) -> None:
    if as_json:
        print(json.dumps({**summary.as_dict(), **more}, indent=2))
    elif not quiet:
        for line in [*summary.text().splitlines(), *(f"  {name:<9} {value}" for name, value in more.items())]:
            say(line)
    elif summary.exit_code:
        print(summary.verdict, file=sys.stderr)
