"""`demo`: the whole way from pictures to a page of regions, in a few seconds on any machine."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from cache import open_store

from .extract import run_extract
from .options import ExtractOptions
from .tally import Summary

MOST_SHOWN = 60
LEAST_DRAWN = 0.3  # score of a region: the model keeps at least 10, weak ones included


def run_demo(
    out: Path, photos: Path | None = None, count: int = 24, seed: int = 0, quiet: bool = False
) -> tuple[Summary, Path]:
    """Extract pictures with the `demo` model and draw what was found.

    Args:
        out: folder for the scenes, the store and the page.
        photos: pictures to use; drawn scenes when None.
        count, seed: how many scenes, and which.
        quiet: show no progress.

    Returns:
        the summary of the extraction and the path of the page.

    Raises: what `run_extract` raises.
    """
    from extractor.scenes import write_scenes
    from extractor.view import PAGE, ImageFinder, draw_store

    images, store = (photos, out / "photos.roi") if photos else (out / "scenes", out / "scenes.roi")
    if not photos:
        write_scenes(images, count, seed)
    summary = run_extract(
        ExtractOptions(
            source=str(images),
            output=str(store),
            model="demo",
            refresh_changed=True,  # the same names may be other scenes
            max_failures="100%",
            quiet=quiet,
        )
    )
    if summary.records:
        opened = open_store(str(store))
        keys, failures = (islice(values, MOST_SHOWN) for values in (opened.keys(), opened.failures()))
        draw_store(
            opened, keys, ImageFinder(images), out, failures=failures, title=store.stem, min_score=LEAST_DRAWN
        )
    return summary, out / PAGE
