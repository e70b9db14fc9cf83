"""A report on runs: scores beside the published ones, and what they say of languages, examples and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .published import Place
from .report_intervals import Interval, compare
from .report_languages import Correlation, correlations, read_properties
from .report_overlap import Overlap, overlaps, read_pictures, warnings
from .report_runs import Found, Run, read_runs
from .report_scores import Scores
from .report_tables import Table, language_tables, paper_tables, part_tables
from .report_vsr import VsrReport, vsr_reports


@dataclass(frozen=True)
class Report:
    """What there is to say.

    Attributes:
        sizes: how many examples a score is of.
        failed: (where, why) of what could not be scored or compared.
    """

    runs: list[Run]
    scores: Scores
    sizes: dict[Place, int]
    paper: list[Table]
    languages: list[Table]
    parts: list[Table]
    warnings: list[str]
    failed: list[tuple[str, str]]
    intervals: list[Interval] = field(default_factory=list)
    correlations: list[Correlation] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    vsr: list[VsrReport] = field(default_factory=list)


def make_report(
    where: Sequence[str],
    annotations: Path | None = None,
    eval_set: str | None = None,
    against: str | None = None,
    properties: Path | None = None,
    detector_images: Path | None = None,
    drawn: str = "pictures",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Read runs and compare them with what was published; without any, the published tables alone.

    Args:
        where, annotations, eval_set, progress: see `read_runs`.
        against: the model that the others are compared with, example by example.
        properties: file of properties of languages.
        detector_images: file of the pictures that the detector was trained on.
        drawn: what intervals are drawn by, see `report_intervals.groups_of`.

    Raises: UsageError, InputNotFound, DataError.
    """
    known = read_properties(properties) if properties else {}
    pictures = read_pictures(detector_images) if detector_images else set()
    found = read_runs(where, annotations, eval_set, progress) if where else Found([], [])
    rows = [(run.model, *score) for run in found.runs for score in run.scores()]
    scores = Scores((model, place, value) for model, place, value, _ in rows)
    sizes = {place: size for _, place, _, size in rows}
    intervals, not_compared = compare(found.runs, against, drawn) if against else ([], [])
    shared, not_told = overlaps(found.runs, pictures) if pictures else ([], [])
    return Report(
        found.runs, scores, sizes, paper_tables(scores), language_tables(scores), part_tables(scores, sizes),
        [*warnings(found.runs), *_unknown_shots(found.runs)], [*found.failed, *not_compared, *not_told],
        intervals, correlations(scores, known), shared, vsr_reports(found.runs, scores, sizes),
    )  # fmt: skip


def _unknown_shots(runs: Sequence[Run]) -> list[str]:
    """Few-shot runs that are in no table, for nothing tells how many shots."""
    count = sum(not run.shots for run in runs)
    return [f"{count} few-shot runs do not tell their shots (`evaluate --shots N`)."] if count else []
