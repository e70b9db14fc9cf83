"""Verbs of the extractor: `models`, `view` and `weights`."""

from __future__ import annotations

import itertools
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cache import UsageError
from cache.output import say, table, visible

from .weights_commands import app as weights

if TYPE_CHECKING:
    from .preset import Preset

SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_LISTED = 1000  # listed on a page


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(models)
    app.command()(view)
    app.add_typer(weights, name="weights")


def models(as_json: bool = typer.Option(False, "--json", help="Print the table as JSON.")) -> None:
    """List the detectors that `extract --model` knows, what each is for, and how to get its weights.

    Beside them, `--model detectron2:CONFIG.yaml --weights FILE` runs a C4 or FPN detector of an installed detectron2.
    """
    from extractor import get_preset, list_extractors

    rows = [_facts(preset) for preset in map(get_preset, list_extractors())]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table(
        ("model", "regions", "features", "classes", "attributes", "weights", "what it is for"),
        (
            (
                row["name"],
                _range(row["min_regions"], row["max_regions"]),
                row["dim"],
                row["classes"],
                row["attributes"],
                _state(row),
                row["summary"],
            )
            for row in rows
        ),
    )


def _facts(preset: Preset) -> dict[str, Any]:
    """What there is to know of a model before it is used; `get` is the command that installs its weights."""
    package = getattr(preset.architecture, "package", None)
    return {
        "name": preset.name,
        "summary": preset.summary,
        "min_regions": preset.selection.min_regions,
        "max_regions": preset.selection.max_regions,
        "dim": preset.dim,
        "classes": len(preset.classes),
        "attributes": len(preset.attributes),
        "training_data": preset.training_data,
        "weights": str(preset.weights_file),
        "installed": preset.weights_file.is_file(),
        "get": f"roivault weights fetch {preset.name}" if preset.urls else None,
        "lacks": package if package and find_spec(package) is None else None,
    }


def _range(least: int, most: int) -> str:
    if least == most:
        return str(most)
    return f"{least}-{most}" if least else f"up to {most}"


def _state(row: dict[str, Any]) -> str:
    """What a model needs, and whether it is here or what to run for it."""
    state = f"{Path(row['weights']).stem}: {'installed' if row['installed'] else row['get'] or 'missing'}"
    return f"{state}; {row['lacks']} is not installed" if row["lacks"] else state


def view(
    store: str = typer.Argument(..., metavar="STORE", help="The store to look into."),
    keys: list[str] = typer.Argument(None, metavar="KEY", help="Keys to draw; none for the first ones of the store."),
    images: Path = typer.Option(
        None, "--images", help="The folder that was extracted, default what the store says; or one key's image."
    ),
    out: Path = typer.Option(Path("view"), "--out", "-o", help="Folder to write to, or one .png or .jpg for one key."),
    max_regions: int = typer.Option(None, "--max-regions", min=1, help="Draw the first N regions; default all."),
    min_score: float = typer.Option(0.0, "--min-score", help="Leave out regions with a lower score."),
    limit: int = typer.Option(60, "--limit", min=1, help="Without keys, draw the first N images."),
    html: bool = typer.Option(True, "--html/--no-html", help="Write index.html beside the pictures."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Draw the regions of images, and a page that shows them all."""
    from cache import open_store
    from extractor.view import PAGE, ImageFinder, draw_key, draw_store, extracted_folder, make_folder

    single = out.suffix.lower() in SUFFIXES
    if single and len(keys or ()) != 1:
        raise UsageError(f"--out {out} is one picture: give one key, or a folder to write to")
    opened = open_store(store)
    finder = ImageFinder(images or extracted_folder(opened))
    if finder.place.is_file() and len(keys or ()) != 1:
        raise UsageError(f"--images {images} is one image: give the one key it belongs to, or a folder of images")
    limits = {"max_regions": max_regions, "min_score": min_score}
    if single:
        _, picture, warning = draw_key(opened, keys[0], finder, **limits)
        make_folder(out.parent)
        picture.save(out, **({} if out.suffix.lower() == ".png" else {"quality": 92, "subsampling": 0}))
        pictures, errors, warnings = {keys[0]: out}, {}, [warning] if warning else []
    else:
        drawn = draw_store(
            opened,
            dict.fromkeys(keys or itertools.islice(opened.keys(), limit)),
            finder,
            out,
            failures=itertools.islice((f for f in opened.failures() if not keys or f.key in keys), MOST_LISTED),
            title=Path(store).name,
            page=html,
            **limits,
        )
        pictures, errors, warnings = drawn.pictures, drawn.errors, drawn.warnings
    for message in [*warnings, *map(str, errors.values())]:
        print(visible(message), file=sys.stderr)
    code = next((error.exit_code for error in errors.values()), 0)
    shown = out / PAGE if html and not single else out
    if as_json:
        result = {"pictures": {key: str(path) for key, path in pictures.items()}, "out": str(shown)}
        result |= {"errors": {key: str(error) for key, error in errors.items()}, "warnings": warnings}
        print(json.dumps({**result, "exit_code": code}, indent=2))
    else:
        more = len(opened) - len(pictures) - len(errors)
        rest = f"; {more:,} more in the store, see --limit" if not keys and more > 0 else ""
        say(f"Drew {len(pictures)} of {len(pictures) + len(errors)} images: {shown}{rest}")
    raise typer.Exit(code)
