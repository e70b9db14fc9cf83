"""Where a conversion puts its rows: a store, or a foreign layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .formats.base import BadRow, Format, Notes, Problem, Vocabularies
from .keys import fits
from .regions import Failure, Regions
from .store import RegionStore
from .writer import StoreWriter

Row = Regions | Failure | Problem
Sink = Callable[[list[Row]], list[Problem]]  # writes a batch, and returns what is to be said of the Regions it refused


@contextmanager
def foreign_sink(target: Path, fmt: Format, words: Vocabularies, notes: Notes) -> Iterator[Sink]:
    with fmt.write(target, words, notes) as put:

        def write(batch: list[Row]) -> list[Problem]:
            refused = []
            for row in batch:
                if isinstance(row, Failure):
                    notes.drop("failures (keys without a record)")
                elif isinstance(row, Regions):
                    try:
                        put(row)
                    except BadRow as error:
                        refused.append(Problem.of(error, f"record {row.key!r}", row.key))
                    else:
                        _note_fields(row, fmt, notes)
            return refused

        yield write


def _note_fields(regions: Regions, fmt: Format, notes: Notes) -> None:
    present = {*regions.arrays(), *(["source_digest"] if regions.source_digest else [])}
    for name in sorted(present - fmt.carries):
        if name == "scores" and "class_probs" in fmt.carries & present:
            if regions.scores.tobytes() == regions.class_probs.tobytes():
                continue  # said by class_probs, from which a reader takes both
        notes.drop(name)


def note_manifest(store: RegionStore, fmt: Format, words: Vocabularies, notes: Notes) -> None:
    """What a store says once for all records."""
    manifest = store.manifest
    if manifest.fingerprint:
        notes.drop("fingerprint")
    if any(shard.provenance for shard in manifest.shards):
        notes.drop("provenance")
    for name in words if fmt.vocabularies is None else ():
        notes.drop(f"names of {name}")


@contextmanager
def store_sink(
    target: Path, dtype: str, fingerprint: dict[str, Any], words: Vocabularies, source: str
) -> Iterator[Sink]:
    with StoreWriter(target, dtype, fingerprint, words) as writer:

        def write(batch: list[Row]) -> list[Problem]:
            failures = [row for row in batch if isinstance(row, Failure)]
            for row in batch:
                if isinstance(row, Problem) and row.key and fits(row.key):
                    failures.append(Failure(row.key, row.kind, row.why, f"{source}: {row.where}"))
            regions, refused = _without_duplicates([row for row in batch if isinstance(row, Regions)], writer)
            writer.write(regions, failures, "drop")
            states = writer.states([row.key for row in regions])
            overflows = ((row.key, s) for row, s in zip(regions, states, strict=True) if isinstance(s, Failure))
            return refused + [Problem(f"record {key!r}", s.message, key, s.kind) for key, s in overflows]

        yield write


def _without_duplicates(regions: list[Regions], writer: StoreWriter) -> tuple[list[Regions], list[Problem]]:
    """The first record of each key, and what is to be said of the others."""
    states = writer.states([row.key for row in regions])
    seen = {row.key for row, state in zip(regions, states, strict=True) if state == "record"}
    kept, refused = [], []
    for row in regions:
        if row.key in seen:
            why = "another record of this key comes before it"
            refused.append(Problem(f"record {row.key!r}", why, row.key, "duplicate_key"))
        else:
            seen.add(row.key)
            kept.append(row)
    return kept, refused
