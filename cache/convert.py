"""From a foreign cache to a store, from a store to a foreign layout, and from a store to one of another dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .building import building
from .contents import StoreContents
from .convert_sinks import Row, Sink, foreign_sink, note_manifest, store_sink
from .errors import DataError, UsageError
from .formats import by_suffix, format_of, get_format, rows_of
from .formats.base import Format, Notes, Problem, Vocabularies
from .keys import why_unfit
from .regions import FEATURE_DTYPES, Failure, Regions
from .remote import is_url
from .store import RegionStore, open_store
from .targets import is_store

STORE = "store"
DEFAULT_DTYPE = "float16"
MAX_PROBLEMS = 1000  # kept in a report; all are counted
_BATCH = 64
_BATCH_BYTES = 64 << 20


@dataclass
class ConvertReport:
    """What became of a cache.

    Attributes:
        source, destination: paths; the formats are names of cache/formats or "store".
        records: how many the destination has.
        failures: keys without a record that a store passed on to a store.
        left_out: how many records of the source could not be used, each with its place and reason in `problems` (of
            which there are at most MAX_PROBLEMS).
        without_place: field of the source that has no place in the destination -> in how many records it was.
        conventions: what ids count on either side, and what was done about it.
        remarks: what is worth knowing of the source as a whole.
    """

    source: str
    source_format: str
    destination: str
    destination_format: str
    feature_dtype: str
    records: int = 0
    failures: int = 0
    left_out: int = 0
    problems: list[Problem] = field(default_factory=list)
    without_place: dict[str, int] = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 65 if self.left_out else 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


def convert(
    source: Path | str,
    destination: Path,
    source_format: str | None = None,
    destination_format: str | None = None,
    feature_dtype: str | None = None,
    vocabularies: Mapping[str, Sequence[str]] | None = None,
    class_offset: int = 0,
    on_problem: Callable[[Problem], None] = lambda problem: None,
    on_progress: Callable[[int], None] = lambda records: None,
) -> ConvertReport:
    """Write what `source` holds to `destination`, streaming.

    The destination bears its name only once it is complete; the source is only read.

    Args:
        source: a path, or the URL of a published store.
        source_format, destination_format: a name of cache/formats, or "store"; None looks at the source's content and
            the destination's name.
        feature_dtype: of a store that is written; None takes that of a source that is a store, else float16.
        vocabularies: "classes" and "attributes" of a foreign source that has ids but no names.
        class_offset: added to every class id, for a source that counts otherwise. A negative one also drops as many
            leading columns (background) of class_scores.
        on_problem: called with each record that is left out, as it is met.
        on_progress: called with the number of records so far.

    Raises:
        InputNotFound, UsageError
        DataError: the source is unusable as a whole, or nothing in it could be used.
        DiskError, StoreLocked, StoreDamaged
    """
    reader, writer = _sides(source, destination, source_format, destination_format)
    store = open_store(source) if reader is None else None
    name = str(store.paths[0] if is_url(source) else source)
    if writer is not None and feature_dtype not in (None, writer.features_as):
        raise UsageError(f"{writer.name} holds features as {writer.features_as}; --dtype {feature_dtype} is for stores")
    if reader is None and vocabularies:
        raise UsageError("a store has its own names of classes and attributes; names can be given to foreign caches")
    dtype = feature_dtype or (store.manifest.feature_dtype if store is not None else DEFAULT_DTYPE)
    if dtype not in FEATURE_DTYPES:
        raise UsageError(f"--dtype {dtype} is not one of {', '.join(FEATURE_DTYPES)}")

    notes = Notes()
    report = ConvertReport(
        name, reader.name if reader else STORE, str(destination), writer.name if writer else STORE,
        writer.features_as if writer else dtype,
    )  # fmt: skip
    for side, fmt in (("source", reader), ("destination", writer)):
        if fmt:
            report.conventions[side] = fmt.ids
    if class_offset:
        report.conventions["shift"] = f"{class_offset:+d} was added to every class id"

    words = _vocabularies(source, store, reader, vocabularies)
    rows = rows_of(source, reader, notes) if reader else chain(StoreContents(store).records(), store.failures())
    rows = _fitting(rows, words, class_offset, notes)
    with building(destination) as target:
        if writer is None:
            sink = store_sink(target, dtype, _fingerprint(store, reader, dtype, class_offset), words, name)
        else:
            sink = foreign_sink(target, writer, words, notes)
            if store is not None:
                note_manifest(store, writer, words, notes)
        _run(rows, sink, report, on_problem, on_progress)
        if not report.records:
            first = f": {report.problems[0].where}: {report.problems[0].why}" if report.problems else ""
            raise DataError(
                f"nothing in {name} could be converted from {report.source_format}"
                f"{f' ({report.left_out:,} records were left out{first})' if first else ', it has no records'}; "
                f"{destination} was not made"
            )
        report.without_place, report.remarks = dict(notes.without_place), list(notes.remarks)
    return report


def _sides(
    source: Path | str, destination: Path, source_format: str | None, destination_format: str | None
) -> tuple[Format | None, Format | None]:
    """Formats of source and destination, None for a store."""
    if source_format == STORE or (source_format is None and is_store(source)):
        reader = None
    elif is_url(source):
        raise UsageError(f"only a store can be read from a URL, --from {source_format} needs a path")
    else:
        reader = format_of(source, source_format)
    if destination_format is not None:
        writer = None if destination_format == STORE else get_format(destination_format)
    elif destination.suffix == ".roi" or (reader and not destination.suffix):
        writer = None
    else:
        writer = by_suffix(destination)
    if writer and not writer.write:
        raise UsageError(f"{writer.name} can be read, not written")
    if reader and writer:
        raise UsageError(
            f"one side must be a store: convert {source} to NAME.roi first, then that to {writer.name}, and have both"
        )
    return reader, writer


# -- rows in


def _fitting(rows: Iterable[Row], words: Vocabularies, class_offset: int, notes: Notes) -> Iterator[Row]:
    """Rows with ids shifted, keys that a store can hold, ids that have names, and one feature dimension.

    Records without regions come without a dimension from some layouts; they wait for the first that has one.
    """
    dim: int | None = None
    waiting: list[Regions] = []
    for row in rows:
        if not isinstance(row, Regions):
            yield row
            continue
        n, d = row.features.shape
        misfit = _misfit(row, words, class_offset)
        if misfit:
            yield misfit
        elif not n and dim is None and not d:
            waiting.append(row)
        elif n and dim not in (None, d):
            yield Problem(
                f"record {row.key!r}", f"its features have dimension {d}, those before it {dim}", row.key, "value_range"
            )
        else:
            dim = d if dim is None else dim
            yield from (_empty(early, dim) for early in waiting)
            waiting.clear()
            yield _shifted(row, class_offset, notes) if n else _empty(row, dim)
    yield from waiting


def _misfit(regions: Regions, words: Vocabularies, class_offset: int) -> Problem | None:
    if why := why_unfit(regions.key):
        return Problem(f"record {regions.key!r}", why, kind="key_invalid")
    for name, ids, offset in (("classes", regions.class_ids, class_offset), ("attributes", regions.attr_ids, 0)):
        top = int(ids.max()) + offset if ids is not None and len(ids) else -1
        if words.get(name) and top >= len(words[name]):
            why = (
                f"there are {len(words[name])} names of {name}, and an id {top}: the names are others, or the ids "
                "count from 1 or include background (--class-offset)"
            )
            return Problem(f"record {regions.key!r}", why, regions.key, "value_range")
    return None


def _empty(regions: Regions, dim: int) -> Regions:
    return regions.replace(features=np.zeros((0, dim), regions.features.dtype))


def _shifted(regions: Regions, offset: int, notes: Notes) -> Regions:
    if not offset:
        return regions
    changes: dict[str, Any] = {}
    if regions.class_ids is not None:
        changes["class_ids"] = regions.class_ids + np.int32(offset)
    if regions.class_scores is not None:
        notes.drop("class_scores" if offset > 0 else f"the first {-offset} column(s) of class_scores")
        changes["class_scores"] = None if offset > 0 else regions.class_scores[:, -offset:]
    return regions.replace(**changes)


# -- what goes with the rows


def _vocabularies(
    source: Path | str, store: RegionStore | None, reader: Format | None, given: Mapping[str, Sequence[str]] | None
) -> Vocabularies:
    if store is not None:
        return store.manifest.vocabularies
    found = reader.vocabularies(source) if reader.vocabularies else {}
    clash = sorted(name for name in given or {} if found.get(name))
    if clash:
        raise UsageError(f"{source} has its own names of {' and '.join(clash)}")
    return {**found, **(given or {})}


def _fingerprint(store: RegionStore | None, reader: Format | None, dtype: str, class_offset: int) -> dict[str, Any]:
    """What the bytes of the new store depend on: the choices behind the old one, and those of this conversion."""
    shift = {"class_offset": class_offset} if class_offset else {}
    if reader:
        return {"converted_from": reader.name, "feature_dtype": dtype, **shift}
    old = store.manifest
    changed = {"converted_from": old.feature_dtype} if dtype != old.feature_dtype else {}
    return {**(old.fingerprint or {}), "feature_dtype": dtype, **changed, **shift}


# -- rows out


def _run(
    rows: Iterable[Row],
    sink: AbstractContextManager[Sink],
    report: ConvertReport,
    on_problem: Callable[[Problem], None],
    on_progress: Callable[[int], None],
) -> None:
    """Hand rows to the sink in batches that fit in memory."""
    with sink as write:
        for batch in _batches(rows):
            refused = write(batch)
            problems = [row for row in batch if isinstance(row, Problem)] + refused
            for problem in problems:
                report.left_out += 1
                if len(report.problems) < MAX_PROBLEMS:
                    report.problems.append(problem)
                on_problem(problem)
            if report.destination_format == STORE:
                report.failures += sum(isinstance(row, Failure) for row in batch)
            report.records += sum(isinstance(row, Regions) for row in batch) - len(refused)
            on_progress(report.records)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.features.nbytes if isinstance(row, Regions) else 0
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
