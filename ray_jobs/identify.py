"""`identify`: which preset made a cache? Extracts a few of its images again and compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

import xxhash

from cache import InputNotFound, Regions, RoivaultError, UsageError
from cache.causes import Cause, causes
from cache.compare import Comparison, compare
from cache.contents import HeldContents, KeyedContents
from cache.families import MOST_RECORDS, Traits
from cache.key_forms import Translation, translation
from extractor import DecodePolicy, Preset, get_preset, list_extractors

from .sources import Item, open_source
from .variations import variations

if TYPE_CHECKING:
    from extractor import Extractor

# Differences that say: the same records, up to arithmetic and rounding
SAME_RECORDS = frozenset("equal dtype arithmetic box_rounding row_order key_forms".split())
# Differences in how they were written down afterwards
NOTATION = frozenset(
    "normalised factor appended_columns global_row box_frame box_scale box_offset box_clip xywh yxyx class_offset "
    "attribute_offset class_vocabulary attribute_vocabulary".split()
)
# Differences after which another setting of the same model is worth a try
SAME_MODEL = frozenset(
    "channel_order resize_rule other_input pooled_boxes regression selection orientation unknown".split()
)
OTHER_IMAGES = frozenset(("other_images", "resized_images"))  # then nothing can be said of the model
MOST_APPENDED = 7  # numbers that systems append to features: the box, its size and area
NOT_INSTALLED, NOT_LOADED = "not installed", "cannot be loaded"
TRIES = 4  # images that are tried for each that is wanted: some may not decode


@dataclass
class Trial:
    """One model, with one setting changed at most, against the cache.

    Attributes:
        model: name of the preset.
        change: what was changed of it, in words; "" for the preset as it is.
        verdict: "yes", "yes, written otherwise" (in another notation), "no" or "unknown".
        likely: the causes of what differs.
        same: share of regions whose features are the same.
    """

    model: str
    change: str
    verdict: str
    likely: list[Cause]
    same: float = 0.0

    @property
    def made_it(self) -> bool:
        return self.verdict.startswith("yes")

    @property
    def names(self) -> set[str]:
        return {cause.name for cause in self.likely}

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model, "change": self.change, "verdict": self.verdict,
            "same_features": round(self.same, 4), "causes": [cause.to_dict() for cause in self.likely],
        }  # fmt: skip


@dataclass
class Identification:
    """What `identify` found. `trials` are in the order of how well they explain the cache; `skipped` says which models
    were not tried, and why; `failures` which of the images could not be extracted; `hints` what the records alone tell
    of the family of detectors."""

    cache: str
    images: str
    found: int
    compared: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        return self.trials[0] if self.trials else None

    @property
    def decided(self) -> bool:
        if self.best is None:
            reasons = self.skipped.values()
            return bool(reasons) and not any(why in reason for why in (NOT_INSTALLED, NOT_LOADED) for reason in reasons)
        return self.best.verdict != "unknown"

    def to_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            "cache": self.cache, "images": self.images, "found": self.found, "compared": self.compared,
            "made_by": best.model if best and best.made_it else None,
            "change": best.change if best and best.made_it else None,
            "decided": self.decided, "trials": [trial.to_dict() for trial in self.trials],
            "skipped": self.skipped, "failures": self.failures, "hints": self.hints,
        }  # fmt: skip


def identify(
    cache: KeyedContents,
    images: str,
    model: str | None = None,
    weights: str | None = None,
    sample: int = 8,
    device: str = "auto",
    load: Callable[[str, str | None, str], Extractor] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Identification:
    """Say which model made a cache.

    Args:
        images: where its images are, as SOURCE of `extract`.
        model, weights: try this one; without it every installed one that loads, cheapest first, until one has made it.
        sample: images to extract, the same ones each time.
        load: (model, weights, device) -> the extractor.
        progress: is told what is being tried.

    Raises:
        InputNotFound: none of the images is there, none can be decoded, or no weights are installed and the records
            alone tell nothing.
        UsageError: weights without a model, an unknown model, or a device that is not there.
    """
    if weights is not None and model is None:
        raise UsageError("--weights is a checkpoint of one model: say which with --model")
    from extractor.devices import resolve_device

    resolve_device(device)
    presets = [get_preset(model)] if model else list(_by_cost())
    pairs = find_images(cache, images)
    report = Identification(cache.name, images, len(pairs))
    report.hints = Traits.of(cache.vocabularies, cache.records(MOST_RECORDS)).hints()
    subject = _Subject(cache, pairs, sample, report)
    for preset in presets:
        if reason := _cannot(preset, subject.dim, weights):
            report.skipped[preset.name] = reason
            continue
        progress(preset.name)
        try:
            extractor = (load or _load)(preset.name, weights, device)
        except RoivaultError as error:  # damaged weights, or a package that is not there
            if model:
                raise
            report.skipped[preset.name] = f"it {NOT_LOADED}: {error}"
            continue
        trial = subject.attempt(extractor)
        report.trials.append(trial)
        if not trial.made_it and trial.names & SAME_MODEL and not trial.names - SAME_MODEL - NOTATION - SAME_RECORDS:
            for change, changed, own_boxes in variations(extractor, trial.names):
                progress(f"{preset.name}, {change}")
                report.trials.append(subject.attempt(changed, change, own_boxes))
                if report.trials[-1].made_it:
                    break
        if report.trials[-1].made_it:
            break
    if not report.trials and not report.hints and all(NOT_INSTALLED in reason for reason in report.skipped.values()):
        raise InputNotFound("no model has its weights installed: see `roivault models` and `roivault weights fetch`")
    report.trials.sort(key=lambda trial: (not trial.made_it, -trial.same))
    return report


def find_images(cache: KeyedContents, images: str) -> list[tuple[str, Item]]:
    """(key of a record, its image), of all images that are found under some key rule. Raises: InputNotFound."""
    listing = open_source(images)
    items: dict[str, Item] = {}
    for item in listing.items():
        items.setdefault(item.key, item)
    if not items:
        raise InputNotFound(f"there are no images in {images}")
    there = HeldContents(images, items, {})
    by_record = _pairs(cache.keys(), translation(cache, there), items.__contains__)
    pairs = [(key, items[name]) for key, name in by_record]
    if len(pairs) < min(len(items), cache.count()):
        known = list(_pairs(items, translation(there, cache), lambda key: cache.has([key])[0]))
        if len(known) > len(pairs):
            pairs = [(key, items[name]) for name, key in known]
    if not pairs:
        raise InputNotFound(
            f"none of the {cache.count():,} keys of {cache.name} names one of the {len(items):,} images in {images}, "
            f"under no key rule; keys are such as {next(iter(cache.keys()), None)!r}, images such as "
            f"{next(iter(items))!r}"
        )
    return pairs


def _pairs(
    keys: Iterator[str] | Mapping[str, Item], rule: Translation, there: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    for key in keys:
        other = rule(key)
        if other is not None and there(other):
            yield key, other


class _Subject:
    """The records that models are tried on, and their images."""

    def __init__(self, cache: KeyedContents, pairs: Sequence[tuple[str, Item]], sample: int, report: Identification):
        self._cache, self._report = cache, report
        self._policy = DecodePolicy()
        self.records: dict[str, Regions] = {}
        self._encoded: dict[str, bytes] = {}
        ranked = nsmallest(TRIES * sample, pairs, key=lambda pair: xxhash.xxh3_64_intdigest(pair[0].encode()))
        for key, item in ranked:
            (record,) = cache.find([key])
            if isinstance(record, Regions) and len(record) and len(self.records) < sample:
                self._take(key, record, item)
        if not self.records:
            why = next(iter(report.failures.items()), ("", "they have no regions"))
            raise InputNotFound(f"none of {len(ranked)} images could be used: {why[0]} {why[1]}")
        report.compared = list(self.records)
        self.dim = next(iter(self.records.values())).features.shape[1]

    def _take(self, key: str, record: Regions, item: Item) -> None:
        from extractor import ImageError, decode

        try:
            data = item.locator.read(item.key, self._policy)
            decode(data, key, self._policy)
        except ImageError as error:
            self._report.failures[key] = f"{error.kind}: {error.message}"
            return
        self.records[key], self._encoded[key] = record.copy(), data

    def attempt(self, extractor: Extractor, change: str = "", own_boxes: bool = False) -> Trial:
        """Extract the images and compare."""
        made: dict[str, Regions] = {}
        for key, data in self._encoded.items():
            boxes = [self.records[key].boxes] if own_boxes else None
            (result,) = extractor([data], boxes, [key], on_error="return")
            if isinstance(result, Regions):
                made[key] = result
            else:
                self._report.failures[key] = f"{result.kind}: {result.message}"
        held = {key: self.records[key] for key in made}
        words = {"classes": extractor.classes, "attributes": extractor.attributes}
        mine = HeldContents(extractor.preset.name, made, words, extractor.fingerprint())
        comparison = compare(HeldContents(self._cache.name, held, self._cache.vocabularies, self._cache.choices), mine)
        likely = causes(comparison)
        return Trial(extractor.preset.name, change, _verdict(likely), likely, _same(comparison))


def _verdict(likely: Sequence[Cause]) -> str:
    names = {cause.name for cause in likely}
    if names <= SAME_RECORDS:
        return "yes"
    if names <= SAME_RECORDS | NOTATION:
        return "yes, written otherwise"
    return "unknown" if names & OTHER_IMAGES or names - NOTATION <= {"unknown"} else "no"


def _same(report: Comparison) -> float:
    return report.regions[3] / max(*report.regions[:2], 1)


def _by_cost() -> Iterator[Preset]:
    """Every preset, those with the least to compute first: size of the weights times pixels of the input."""

    def cost(preset: Preset) -> tuple[bool, int]:
        file = preset.weights_file
        return (not file.is_file(), file.stat().st_size * preset.preprocess.pixels if file.is_file() else 0)

    yield from sorted(map(get_preset, list_extractors()), key=cost)


def _cannot(preset: Preset, dim: int, weights: str | None) -> str | None:
    """Why a preset did not make features of that dimension, or cannot be tried."""
    if not 0 <= dim - preset.dim <= MOST_APPENDED:
        return f"its features have {preset.dim} numbers, those of the cache {dim}"
    if weights is None and not preset.weights_file.is_file():
        return f"its weights are {NOT_INSTALLED}: roivault weights fetch {preset.name}"
    return None


def _load(name: str, weights: str | None, device: str) -> Extractor:
    from extractor import load_extractor

    return load_extractor(name, weights, device)
