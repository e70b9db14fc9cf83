"""The verbs `weights fetch`, `weights import` and `weights list`."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from cache.output import say
from cache.progress import ByteProgress

app = typer.Typer(no_args_is_help=True, help="Download, convert and list the checkpoints of the detectors.")

_NAME = typer.Argument(..., metavar="MODEL", help="A model of `roivault models`.")
_JSON = typer.Option(False, "--json", help="Print the result as JSON.")


@app.command("fetch")
def fetch(
    name: str = _NAME,
    url: list[str] = typer.Option([], help="Address to try before the published ones; may be repeated."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
    as_json: bool = _JSON,
) -> None:
    """Download, check and keep a detector's checkpoint.

    It is converted once; a download that breaks off goes on where it was.
    """
    from .presets import get_preset
    from .weights_cache import fetch_weights

    with ByteProgress("downloaded", as_json or quiet) as progress:
        path = fetch_weights(get_preset(name), url, progress)
    _print(name, path, as_json)


@app.command("import")
def import_(
    name: str = _NAME,
    file: Path = typer.Argument(..., metavar="FILE", help="Its checkpoint, as published or converted."),
    as_json: bool = _JSON,
) -> None:
    """Check and keep a checkpoint that is already here.

    It is converted once, and need not be named again.
    """
    from .presets import get_preset
    from .weights_cache import import_weights

    _print(name, import_weights(get_preset(name), file), as_json)


@app.command("list")
def list_(as_json: bool = _JSON) -> None:
    """Show where checkpoints are, or come from."""
    from .presets import get_preset, list_extractors
    from .weights_cache import recorded

    checksums = recorded()
    rows = []
    for preset in map(get_preset, list_extractors()):
        path = preset.weights_file
        rows.append(
            {
                "model": preset.name,
                "installed": path.is_file(),
                "path": str(path),
                "bytes": path.stat().st_size if path.is_file() else None,
                "sha256": checksums.get(path.name),
                "urls": list(preset.urls),
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        state = f"{row['path']}, {row['bytes']:,} bytes" if row["installed"] else "not installed"
        say(f"{row['model']}: {state}")
        for url in row["urls"]:
            say(f"    {url}")


def _print(name: str, path: Path, as_json: bool) -> None:
    from .weights import weights_sha256

    if as_json:
        print(json.dumps({"model": name, "path": str(path), "sha256": weights_sha256(path)}))
    else:
        say(f"the weights of {name} are at {path}")
