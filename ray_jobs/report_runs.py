"""The runs of a job as lines of JSON, one a run, so that a resumed job keeps the history of what came before."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .tally import STAGES, Tally

MOST_RUNS = 50  # shown, the newest
MOST_BYTES = 1 << 20  # read, from the end of the file


@dataclass(frozen=True)
class Run:
    """One run. Counts are those of `Tally`; `waiting` inputs were listed but not reached.

    Attributes:
        started: UTC, ISO 8601.
        seconds: how long it took.
        stage_seconds, stage_images: per stage.
        span_seconds, span_images: images committed in each span of that many seconds, from the start on.
    """

    started: str
    seconds: float
    command: str
    verdict: str
    exit_code: int
    listed: int
    listing_complete: bool
    records: int
    new: int
    already: int
    failed: int
    waiting: int
    regions: int
    nbytes: int
    failures: dict[str, int]
    stage_seconds: dict[str, float]
    stage_images: dict[str, int]
    span_seconds: float
    span_images: list[int]
    devices: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tally: Tally, **about: Any) -> Run:
        span_seconds, span_images = tally.pace.history()
        return cls(
            seconds=round(tally.pace.elapsed, 3),
            listed=tally.listed,
            listing_complete=tally.complete,
            records=tally.records,
            new=tally.new,
            already=tally.already,
            failed=tally.failed,
            waiting=tally.listed - tally.done,
            regions=tally.regions,
            nbytes=tally.nbytes,
            failures=dict(tally.failures.most_common()),
            stage_seconds={stage: round(tally.seconds[stage], 3) for stage in STAGES},
            stage_images={stage: tally.images[stage] for stage in STAGES},
            span_seconds=span_seconds,
            span_images=span_images,
            devices=sorted(tally.devices),
            **about,
        )

    @property
    def replaced(self) -> int:
        """Records that this run made anew."""
        return self.records - self.new - self.already

    @property
    def committed(self) -> int:
        """Images that this run worked on."""
        return self.stage_images.get("write", 0)


def append_run(path: Path, run: Run) -> None:
    """Add a line, on a line of its own even if a killed run left half a one. Raises: OSError."""
    with open(path, "ab+") as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
        torn = bool(end) and file.read(1) != b"\n"
        file.write(b"\n" * torn + json.dumps(asdict(run)).encode() + b"\n")


def read_runs(path: Path) -> list[Run]:
    """The newest runs, the latest last; lines that are no runs are passed over. Raises: OSError."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_BYTES))
        lines = file.read().split(b"\n")
    return [run for run in map(_parse, lines) if run][-MOST_RUNS:]


_PLAIN = {"str": str, "int": int, "float": (int, float), "bool": bool}


def _parse(line: bytes) -> Run | None:
    try:
        values = json.loads(line)
        run = Run(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    return run if all(_is(getattr(run, each.name), each.type) for each in fields(Run)) else None


def _is(value: object, kind: str) -> bool:
    """Whether a value is of the type that an annotation names."""
    if kind.startswith("dict["):
        of = kind.removesuffix("]").rpartition(" ")[2]
        return isinstance(value, dict) and all(_is(each, of) for each in value.values())
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(each, kind[5:-1]) for each in value)
    return isinstance(value, _PLAIN[kind])
