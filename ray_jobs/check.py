"""`sources check`: what of a dataset is on disk, before any model runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from cache import DataError, Failure, UsageError
from cache.keys import printable
from extractor.image_formats import HEAD
from extractor.images import DecodePolicy, decode

from .decoding import attempt
from .listing import SeenKeys
from .progress import Progress
from .sources import Item, Source, open_source
from .sources.annotations import expected_keys
from .sources.dataset import DatasetSource
from .tally import NOT_AS_ASKED, Tally

CHUNK = 64
THREADS = 8
MOST_SHOWN = 10


@dataclass(frozen=True)
class Part:
    """A part of a dataset: pictures that it should have (None if nobody says) and that are there."""

    expected: int | None
    found: int

    @property
    def complete(self) -> bool:
        return self.expected is None or self.found >= self.expected


@dataclass
class Report:
    """What `check` found. Every picture of the listing is in exactly one of `parts`, `duplicates` and `others`.

    Attributes:
        source, path: what was checked.
        parts: per part of the dataset, by name.
        annotations: per annotation file, pictures it names and how many of these are missing.
        missing: keys that the annotations name and the disk lacks.
        extra: how many pictures the annotations do not name, None without annotations; no fault.
        unreadable: pictures whose first bytes, or with `decoded` all of them, are not those of a picture.
        duplicates: pictures whose key another one has.
        others: pictures that are not of this dataset, which `extract` passes over, and the first of them.
        cut_short: folders, archives and tables that could not be listed to their end, among `unreadable`.
    """

    source: str
    path: str
    decoded: bool
    parts: dict[str, Part] = field(default_factory=dict)
    annotations: dict[str, dict[str, int]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    extra: int | None = None
    unreadable: list[Failure] = field(default_factory=list)
    duplicates: list[Failure] = field(default_factory=list)
    others: int = 0
    first_others: list[str] = field(default_factory=list)
    cut_short: int = 0

    @property
    def found(self) -> int:
        return sum(part.found for part in self.parts.values())

    @property
    def problems(self) -> list[str]:
        """Why the exit code is not 0, the worst first."""
        short = {} if self.annotations else {n: p for n, p in self.parts.items() if p.found and not p.complete}
        found = [
            "there are no pictures of it here" if not self.found else "",
            f"{self.cut_short:,} places could not be listed to their end" if self.cut_short else "",
            f"{len(self.missing):,} of the annotated pictures are missing" if self.missing else "",
            *(f"{name} lacks {part.expected - part.found:,} of {part.expected:,}" for name, part in short.items()),
            f"{len(self.unreadable):,} cannot be read" if self.unreadable else "",
            f"{len(self.duplicates):,} have a key that another one has" if self.duplicates else "",
        ]
        return [problem for problem in found if problem]

    @property
    def exit_code(self) -> int:
        return NOT_AS_ASKED if self.problems else 0

    @property
    def verdict(self) -> str:
        return f"Incomplete: {'; '.join(self.problems)}." if self.problems else f"Complete: {self.found:,} pictures."

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "found": self.found, "verdict": self.verdict, "exit_code": self.exit_code}


def check(spec: str, annotations: str | None = None, full: bool = False, quiet: bool = False) -> Report:
    """Compare what is on disk with what should be there.

    Args:
        spec: SOURCE, as for `extract`.
        annotations: folder or file of annotations; then the pictures named there decide what is missing.
        full: decode every picture instead of looking at its first bytes.
        quiet: show no progress.

    Raises:
        UsageError: annotations for a source that is no dataset.
        InputNotFound: nothing at the path, or no annotations.
        DataError: annotations that are damaged, or none of this dataset.
    """
    source = open_source(spec)
    if annotations is not None and not isinstance(source, DatasetSource):
        raise UsageError(f"--annotations go with published datasets; {source.name} is none")
    expected = dict(expected_keys(source, annotations)) if annotations is not None else {}
    if annotations is not None and not expected:
        raise DataError(f"the annotations in {printable(annotations)} name no picture of {source.name}")
    report, tally, keys = Report(source.name, source.path, full), Tally(), set()
    with Progress(tally, quiet), ThreadPoolExecutor(THREADS, thread_name_prefix="check") as pool:
        found = _look(source, report, tally, pool, keys if expected else None)
    report.parts = {name: Part(count, found.pop(name, 0)) for name, count in source.counts.items()}
    if getattr(source, "split", None):
        report.parts = {source.split: report.parts[source.split]}
    report.parts |= {name: Part(None, count) for name, count in found.items()}
    if expected:
        report.annotations = {
            name: {"expected": len(named), "missing": len(named - keys)} for name, named in expected.items()
        }
        named = set().union(*expected.values())
        report.missing, report.extra = sorted(named - keys), len(keys - named)
    return report


def _look(source: Source, report: Report, tally: Tally, pool: ThreadPoolExecutor, keys: set[str] | None) -> Counter:
    """Pictures per part; fills in the rest of the report, and the keys if they are wanted."""
    found: Counter[str] = Counter()
    seen, listed = SeenKeys(), _parts(source, report)
    while batch := list(islice(listed, CHUNK)):
        parts = {id(item): part for part, item in batch}
        chunk = seen.split([item for _, item in batch])
        tally.listed += len(chunk)
        tally.pace.add(len(chunk))
        for item in chunk.duplicates:
            message = f"another picture has the key {item.key!r} already"
            report.duplicates.append(Failure(item.key, "duplicate_key", message, item.source))
            tally.failures["duplicate_key"] += 1
        probed = pool.map(_probe_all if report.decoded else _probe, chunk.items)
        for item, failure in zip(chunk.items, probed, strict=True):
            report.cut_short += item.hides
            if isinstance(failure, Failure):
                report.unreadable.append(failure)
                tally.failures[failure.kind] += 1
            else:
                tally.records += 1
            if not item.hides:
                found[parts[id(item)]] += 1
                if keys is not None:
                    keys.add(item.key)
    tally.complete = True
    return found


def _parts(source: Source, report: Report) -> Iterator[tuple[str, Item]]:
    """The pictures of the source with their parts; counts those that are not of the dataset."""
    if not isinstance(source, DatasetSource):
        yield from (("all", item) for item in source.items())
        return
    for part, item in source.parts():
        if part is None:
            report.others += 1
            if len(report.first_others) < MOST_SHOWN:
                report.first_others.append(item.source)
        elif item.hides or source.split in (None, part):
            yield part or "unknown", item


def _probe(item: Item) -> bytes | Failure:
    policy = DecodePolicy()
    return attempt(item, lambda: item.locator.read(item.key, policy, HEAD))


def _probe_all(item: Item) -> object:
    policy = DecodePolicy()
    return attempt(item, lambda: decode(item.locator.read(item.key, policy), item.key, policy) and None)
