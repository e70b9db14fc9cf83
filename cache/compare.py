"""How two caches differ: images, regions, boxes, features, ids; summed up in memory that does not grow with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from .contents import Contents, KeyedContents
from .distribution import Distribution, short
from .errors import UsageError
from .families import Traits
from .formats.base import Problem
from .key_forms import Translation, missing_from, translation
from .labels import Labels, names_of
from .pairing import SAME, Pair, compare_pair
from .regions import Regions

EXAMPLES = 5  # keys kept of each finding
WARM, COLD = ("red", "orange", "brown", "maroon"), ("blue", "light blue", "dark blue", "navy")
_BATCH = 64

Words = Mapping[str, Sequence[str]]


@dataclass
class Comparison:
    """What was found about two caches, A and B.

    Attributes:
        names, formats, choices: of the two.
        records: numbers of records, None where they are not known.
        keys: how keys were brought together.
        compared: images that both have, and that were compared; `equal` of them are equal but for ids and dtypes.
        missing_in_a, missing_in_b: keys that only the other has; None where a sample or a foreign cache cannot tell.
        unreadable: (side, kind) -> records that could not be read.
        found: (aspect, verdict, side, note) -> images; aspects are image, selection, boxes, features and columns.
        examples: the same and "missing_in_a", ... -> first keys.
        dtypes, dims: (of A, of B) -> images.
        regions: of A, of B, matched, and matched with the same features; `matched_by`, and in `region_counts` the side
            with more of them, -> images.
        iou_gaps, cosine_gaps: 1 - IoU and 1 - cosine of matched regions; so that values near 1 are told apart.
        differences: norm of the difference over the norm, of matched regions.
        distinct, image_distinct: sums behind the alignments: cosines of what belongs together and of what does not, and
            their number; of regions also how many are the same all the same.
        traits: of A and of B, habits that tell families of detectors apart.
        warm_cold: how colours named on both sides agree in these images: "kept", or "crossed" between red and blue.
    """

    names: tuple[str, str]
    formats: tuple[str, str]
    choices: tuple[Mapping[str, Any], Mapping[str, Any]]
    records: tuple[int | None, int | None]
    keys: Translation = field(default_factory=Translation)
    compared: int = 0
    equal: int = 0
    missing_in_a: int | None = None
    missing_in_b: int | None = 0
    unreadable: Counter[tuple[str, str]] = field(default_factory=Counter)
    found: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    examples: dict[Any, list[str]] = field(default_factory=dict)
    dtypes: Counter[tuple[str, str]] = field(default_factory=Counter)
    dims: Counter[tuple[int, int]] = field(default_factory=Counter)
    regions: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    region_counts: Counter[str] = field(default_factory=Counter)
    matched_by: Counter[str] = field(default_factory=Counter)
    iou_gaps: Distribution = field(default_factory=Distribution)
    cosine_gaps: Distribution = field(default_factory=Distribution)
    differences: Distribution = field(default_factory=Distribution)
    distinct: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    image_distinct: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    _before: np.ndarray | None = None
    classes: Labels = field(default_factory=Labels)
    attributes: Labels = field(default_factory=Labels)
    warm_cold: Counter[str] = field(default_factory=Counter)
    traits: tuple[Traits, Traits] = field(default_factory=lambda: (Traits(), Traits()))

    @property
    def alignment(self) -> float | None:
        """How much more the features of one region are alike than those of different regions of an image: 1 is all
        that is possible, about 0 what unrelated networks have. Of images whose features differ."""
        return _alignment(*self.distinct[:3])

    @property
    def image_alignment(self) -> float | None:
        """The same of the mean features of images; tells even where no regions could be matched."""
        return _alignment(*self.image_distinct)

    @property
    def same(self) -> bool:
        """Both hold the same images with the same values; dtype and order of keys aside."""
        return self.compared > 0 and not self.differences_found()

    def differences_found(self) -> list[str]:
        """What differs, in a word each."""
        differs = [name for name, count in (("missing_in_a", self.missing_in_a), ("missing_in_b", self.missing_in_b),
                                            ("unreadable", sum(self.unreadable.values()))) if count]  # fmt: skip
        fine = {"image": ("same",), "selection": ("same",), "boxes": ("equal",), "features": ("equal", "none")}
        differs += sorted({aspect for aspect, verdict, *_ in self.found if verdict not in fine.get(aspect, ())})
        labels = {"classes": self.classes, "attributes": self.attributes}
        differs += [name for name, ids in labels.items() if ids.same_id < ids.regions]
        differs += ["keys"] if self.keys.changes else []
        differs += ["dtype"] if any(a != b for a, b in self.dtypes) else []
        return differs

    @property
    def without_match(self) -> int:
        """Images that have regions on both sides, none of which could be matched."""
        return self.matched_by["nothing"]

    def count(self, aspect: str, *verdicts: str) -> int:
        """Images of these verdicts."""
        return sum(n for (about, verdict, *_), n in self.found.items() if about == aspect and verdict in verdicts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": {"name": self.names[0], "format": self.formats[0], "records": self.records[0]},
            "b": {"name": self.names[1], "format": self.formats[1], "records": self.records[1]},
            "keys": {"a": self.keys.rule_a, "b": self.keys.rule_b},
            "compared": self.compared,
            "equal": self.equal,
            "missing_in_a": self.missing_in_a,
            "missing_in_b": self.missing_in_b,
            "unreadable": [{"in": side, "kind": kind, "records": n} for (side, kind), n in self.unreadable.items()],
            "differs": self.differences_found(),
            "dtypes": [{"a": a, "b": b, "images": n} for (a, b), n in self.dtypes.most_common()],
            "dims": [{"a": a, "b": b, "images": n} for (a, b), n in self.dims.most_common(10)],
            "regions": dict(zip(("a", "b", "matched", "same"), self.regions, strict=True)),
            "region_counts": dict(self.region_counts),
            "matched_by": dict(self.matched_by),
            "found": [
                {"about": about, "verdict": verdict, "side": side, "note": note, "images": n,
                 "examples": self.examples[about, verdict, side, note]}
                for (about, verdict, side, note), n in self.found.most_common()
            ],
            "one_minus_iou": self.iou_gaps.to_dict(),
            "one_minus_cosine": self.cosine_gaps.to_dict(),
            "relative_difference": self.differences.to_dict(),
            "alignment": short(self.alignment),
            "image_alignment": short(self.image_alignment),
            "classes": self.classes.to_dict(),
            "attributes": self.attributes.to_dict(),
            "red_and_blue": dict(self.warm_cold),
            "families": {side: list(traits.possible()) for side, traits in zip("ab", self.traits, strict=True)},
            "examples": {name: keys for name, keys in self.examples.items() if isinstance(name, str)},
            "recorded": recorded(self.choices),
        }  # fmt: skip

    # -- one image

    def add(self, a: Regions, b: Regions, words: tuple[Words, Words]) -> None:
        """Take in the two records of one image; `words` are the vocabularies of A and B."""
        pair = compare_pair(a, b)
        self.traits[0].add(a)
        self.traits[1].add(b)
        self.compared += 1
        self.equal += pair.equal
        self.dtypes[str(a.features.dtype), str(b.features.dtype)] += 1
        self.dims[pair.columns] += 1
        self.matched_by[pair.matched_by] += 1
        for place, count in enumerate((*pair.regions, len(pair.rows_a), np.count_nonzero(pair.cosines >= SAME))):
            self.regions[place] += int(count)
        self.region_counts["same" if len(a) == len(b) else "more in A" if len(a) > len(b) else "more in B"] += 1
        self._note(a.key, "image", pair.image)
        self._note(a.key, "selection", pair.selection, pair.smaller)
        if len(pair.rows_a):
            self._note(a.key, "boxes", pair.boxes.name, pair.boxes.side, pair.boxes.note)
            self._note(a.key, "features", pair.features, pair.features_side, pair.features_note)
        if pair.columns[0] != pair.columns[1]:
            self._note(a.key, "columns", "fewer", "a" if pair.columns[0] < pair.columns[1] else "b")
        self.iou_gaps.add(1 - pair.ious)
        self.cosine_gaps.add(np.clip(1 - pair.cosines, 0, None))
        self.differences.add(pair.differences)
        if pair.features == "different" and pair.strangers is not None:
            alike = (pair.cosines >= SAME).mean()
            for place, value in enumerate((pair.cosines.mean(), pair.strangers, 1.0, alike)):
                self.distinct[place] += float(value) * len(pair.rows_a)
        self._align_images(pair)
        self._add_labels(a, b, pair, words)

    def _align_images(self, pair: Pair) -> None:
        if pair.means is None:
            return
        mine, theirs = pair.means
        if pair.features in ("different", "none") and self._before is not None and len(self._before) == len(mine):
            for place, value in enumerate((mine @ theirs, mine @ self._before, 1.0)):
                self.image_distinct[place] += float(value)
        self._before = theirs

    def _add_labels(self, a: Regions, b: Regions, pair: Pair, words: tuple[Words, Words]) -> None:
        for what, name in (("classes", "class_ids"), ("attributes", "attr_ids")):
            ids = [getattr(x, name) for x in (a, b)]
            if any(x is None for x in ids):
                continue
            ids_a, ids_b = ids[0][pair.rows_a], ids[1][pair.rows_b]
            words_a, words_b = (w.get(what, ()) for w in words)
            getattr(self, what).add(ids_a, ids_b, words_a, words_b)
            if what == "attributes" and pair.features == "different":
                for one, two in zip(names_of(ids_a, words_a), names_of(ids_b, words_b), strict=True):
                    if {one, two} <= {*WARM, *COLD}:
                        self.warm_cold["kept" if (one in WARM) == (two in WARM) else "crossed"] += 1

    def _note(self, key: str, about: str, verdict: str, side: str = "", note: str = "") -> None:
        self.found[about, verdict, side, note] += 1
        self.example((about, verdict, side, note), key)

    def example(self, what: Any, key: str) -> None:
        keys = self.examples.setdefault(what, [])
        if len(keys) < EXAMPLES:
            keys.append(key)


def compare(
    a: Contents,
    b: Contents,
    sample: int | None = None,
    keys: Sequence[str] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Comparison:
    """Compare two caches, image by image. A foreign one is read from its beginning; then the other must be a store.

    Args:
        sample: compare that many images of A (of the foreign one, where there is one), always the same ones.
        keys: compare only these, keys of A.
        progress: called after each image of that side.

    Raises:
        UsageError: both are foreign, or keys are given for one.
    """
    report = Comparison((a.name, b.name), (a.format, b.format), (a.choices, b.choices), (a.count(), b.count()))
    report.traits = Traits.of(a.vocabularies), Traits.of(b.vocabularies)
    turned = not isinstance(b, KeyedContents)
    streamed, other = (b, a) if turned else (a, b)
    if not isinstance(other, KeyedContents):
        raise UsageError(f"one side has to be a store: `roivault convert {a.name} -o NAME.roi` first")
    if keys is not None and not isinstance(streamed, KeyedContents):
        raise UsageError(f"--ids needs two stores: `roivault convert {streamed.name} -o NAME.roi` first")
    rule = translation(streamed, other, keys)
    report.keys = Translation(rule.rule_b, rule.rule_a, rule.by_form) if turned else rule
    sides = ("b", "a") if turned else ("a", "b")
    words = (_words(a, b), _words(b, a))
    met, lost = 0, 0
    for mine, theirs in _pairs(streamed, other, rule, sample, keys, report, sides):
        progress()
        if theirs is None:
            lost += 1
            report.example(f"missing_in_{sides[1]}", mine.key)
            continue
        met += 1
        report.add(*((theirs, mine) if turned else (mine, theirs)), words)
    whole = sample is None and keys is None
    setattr(report, f"missing_in_{sides[1]}", lost)
    setattr(report, f"missing_in_{sides[0]}", _missing(streamed, other, rule, met, report, sides[0]) if whole else None)
    return report


def _words(mine: Contents, other: Contents) -> Words:
    """Names of a side's ids: its own, else those of the other side."""
    return {what: mine.vocabularies.get(what) or other.vocabularies.get(what, ()) for what in ("classes", "attributes")}


def _pairs(
    streamed: Contents, other: KeyedContents, rule: Translation, sample: int | None, keys: Sequence[str] | None,
    report: Comparison, sides: tuple[str, str],
) -> Iterator[tuple[Regions, Regions | None]]:  # fmt: skip
    """Each record that can be read with that of the same image, None if the other side has none."""
    records = streamed.records(sample) if keys is None else _of_keys(streamed, keys, report, sides[0])
    while batch := list(islice(records, _BATCH)):
        read = []
        for record in batch:
            if isinstance(record, Problem):
                _unreadable(report, sides[0], record)
            else:
                read.append(record)
        wanted = [rule(record.key) for record in read]
        found = iter(other.find([key for key in wanted if key is not None]))
        for record, key in zip(read, wanted, strict=True):
            theirs = next(found) if key is not None else None
            if isinstance(theirs, Problem):
                _unreadable(report, sides[1], theirs)
            else:
                yield record, theirs


def _of_keys(lookup: KeyedContents, keys: Sequence[str], report: Comparison, side: str) -> Iterator[Regions | Problem]:
    waiting = iter(keys)
    while batch := list(islice(waiting, _BATCH)):
        for key, found in zip(batch, lookup.find(batch), strict=True):
            if found is None:
                report.example(f"missing_in_{side}", key)
            else:
                yield found


def _unreadable(report: Comparison, side: str, problem: Problem) -> None:
    report.unreadable[side, problem.kind] += 1
    report.example(f"unreadable_in_{side}", problem.key or problem.where)


def _missing(
    streamed: Contents, other: KeyedContents, rule: Translation, met: int, report: Comparison, side: str
) -> int:
    """How many images of `other` the streamed side lacks."""
    if isinstance(streamed, KeyedContents) and not rule.changes:
        count = 0
        for key in missing_from(streamed, other):
            count += 1
            report.example(f"missing_in_{side}", key)
        return count
    unread = report.unreadable.total()
    return max(other.count() - met - unread, 0)


def _alignment(own: float, strange: float, count: float) -> float | None:
    return (own - strange) / max(count - strange, 1e-9) if count else None


def recorded(choices: tuple[Mapping[str, Any], Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """What both caches say about how they were made, and say differently: name -> (A's, B's)."""
    a, b = choices
    return {name: (a[name], b[name]) for name in a if name in b and a[name] != b[name]}
