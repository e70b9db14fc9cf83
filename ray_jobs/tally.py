"""What a job has done so far, and the summary it ends with."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cache import Failure

from .pace import Pace
from .report_samples import Samples
from .signals import INTERRUPTED

if TYPE_CHECKING:
    from .sources import Item

STAGES = ("list", "decode", "model", "write")
MOST_EXAMPLES = 20
NOT_AS_ASKED = 65  # exit code


@dataclass
class Tally:
    """Running counts over the listing, as the store holds it.

    Attributes:
        listed: inputs so far; `complete` once the listing has ended.
        cut_short: failures that stand for an unknown number of inputs, such as a folder that cannot be listed.
        records: inputs with a record, of which `new` were written by this run and `already` were there.
        failures: inputs without one, per kind.
        retried, refreshed: earlier failures tried again, and records replaced because their image changed.
        regions: regions written by this run.
        nbytes: length of the values written by this run.
        seconds, images: time spent in each stage, and how many images went through it.
        pace: how fast images are committed.
        devices: where models are at work.
        queues: how many images wait in front of each stage; the engine keeps it up to date.
        examples: the first failures, with their messages.
        samples: a few inputs of every sort, for the report.
    """

    listed: int = 0
    complete: bool = False
    cut_short: int = 0
    records: int = 0
    new: int = 0
    already: int = 0
    retried: int = 0
    refreshed: int = 0
    regions: int = 0
    nbytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    pace: Pace = field(default_factory=Pace)
    devices: list[str] = field(default_factory=list)
    queues: dict[str, int] = field(default_factory=dict)
    examples: list[Failure] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def done(self) -> int:
        return self.records + self.failed

    @property
    def finished(self) -> bool:
        """Whether every input of the whole listing has its state."""
        return self.complete and self.done == self.listed

    def keep(self, item: Item) -> None:
        """Count an input that has a record."""
        self.records += 1
        self.samples.keep(item)

    def fail(self, failure: Failure, item: Item) -> None:
        """Count an input that has a failure."""
        self.failures[failure.kind] += 1
        self.samples.fail(failure, item)
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(failure)

    def forget(self, item: Item, failure: Failure | None) -> None:
        """Take back what `keep`, or `fail`, counted."""
        if failure is None:
            self.records -= 1
        else:
            self.failures -= Counter([failure.kind])  # none of a kind leaves no such kind
            self.examples = [example for example in self.examples if example != failure]
        self.samples.forget(item)

    def spend(self, stage: str, seconds: float, images: int) -> None:
        self.seconds[stage] += seconds
        self.images[stage] += images
        if stage == "write":
            self.pace.add(images)

    def rates(self) -> dict[str, float]:
        """Images per second of each stage's own time: what it could do if it had nothing to wait for."""
        return {s: round(self.images[s] / self.seconds[s], 1) for s in STAGES if self.images[s] and self.seconds[s] > 0}


@dataclass(frozen=True)
class Allowance:
    """How many failures a job may end with: a number, or a percentage of the listing."""

    value: float
    percent: bool

    def exceeded(self, failures: int, listed: int) -> bool:
        return failures > (listed * self.value / 100 if self.percent else self.value)

    def __str__(self) -> str:
        return f"{self.value:g}{'%' if self.percent else ''}"


@dataclass(frozen=True)
class Summary:
    """How a job ended. Counts are those of `Tally`: over this listing, as the store holds it at the end.

    `verdict` says in one sentence why the exit code is what it is; `report` is the page of this run, None without one.
    """

    source: str
    store: str
    model: str
    engine: str
    device: str | None  # None when there was nothing for the model to do
    precision: str
    feature_dtype: str
    threads: int
    listed: int
    records: int
    failed: int
    failures: dict[str, int]
    new: int
    already: int
    retried: int
    refreshed: int
    regions: int
    seconds: dict[str, float]
    images_per_second: dict[str, float]
    examples: list[dict[str, str]]
    verdict: str
    exit_code: int
    report: str | None = None

    @classmethod
    def of(cls, tally: Tally, **about: Any) -> Summary:
        return cls(
            listed=tally.listed,
            records=tally.records,
            failed=tally.failed,
            failures=dict(tally.failures.most_common()),
            new=tally.new,
            already=tally.already,
            retried=tally.retried,
            refreshed=tally.refreshed,
            regions=tally.regions,
            seconds={stage: round(tally.seconds[stage], 3) for stage in STAGES},
            images_per_second=tally.rates(),
            examples=[asdict(failure) for failure in tally.examples],
            **about,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """For a person."""
        from extractor.gallery import visible

        lines = [self.verdict]
        kept = f"{self.already:,} already there" if self.already else ""
        tried = f"{self.retried:,} failures tried again" if self.retried else ""
        again = f"{self.refreshed:,} replaced" if self.refreshed else ""
        detail = ", ".join(filter(None, [f"{self.new:,} new", kept, again, tried]))
        lines.append(
            f"  images    {self.listed:,} listed, {self.records:,} in the store ({detail}), {self.failed:,} failed"
        )
        if self.new or self.refreshed:
            lines.append(f"  regions   {self.regions:,} written")
        if self.device:
            rates = ", ".join(f"{stage} {rate:g}" for stage, rate in self.images_per_second.items())
            lines.append(f"  speed     {rates} images/s on {self.device}, {self.threads} threads")
        for kind, count in self.failures.items():
            lines.append(f"  {kind}: {count:,}")
            shown = [example for example in self.examples if example["kind"] == kind]
            lines += [visible(f"    {e['source'] or e['key']}: {e['message']}") for e in shown]
            if count > len(shown):
                lines.append(f"    ... and {count - len(shown):,} more; `roivault ls --failures` lists them")
        lines.append(f"  store     {self.store}")
        if self.report:
            lines.append(f"  report    {self.report}")
        return "\n".join(lines)


def judge(tally: Tally, allowed: Allowance, store: str, stopped: bool) -> tuple[str, int]:
    """The verdict on a job and its exit code."""
    if stopped:
        return f"Interrupted after {tally.done:,} images; run the same command again to continue.", INTERRUPTED
    if not tally.listed:
        return "There are no images here; nothing was extracted.", NOT_AS_ASKED
    if not tally.records:
        return f"None of the {tally.listed:,} images could be extracted.", NOT_AS_ASKED
    if allowed.exceeded(tally.failed, tally.listed):
        verdict = (
            f"Done, but {tally.failed:,} of {tally.listed:,} images failed, more than --max-failures {allowed} allows."
        )
        return verdict, NOT_AS_ASKED
    if tally.cut_short:
        verdict = f"Done, but {tally.cut_short:,} folders, archives or tables could not be listed to their end."
        return verdict, NOT_AS_ASKED
    failed = f"; {tally.failed:,} failed" if tally.failed else ""
    return f"Done: {shlex.quote(store)} holds {tally.records:,} of {tally.listed:,} images{failed}.", 0
