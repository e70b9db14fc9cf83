"""Which family of detectors made a cache, as far as its records alone tell: no images and no weights are needed.

The families differ in habits that survive in what is stored: the order of regions, how often one is repeated, where
boxes end, which classes there are. Each habit speaks for some of the families; what all of them allow is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from .formats.base import Problem
from .regions import Regions

FAMILIES = {
    "vg-r101": "the ResNet-101 of bottom-up attention in its detectron2 port: vg-r101 and its variants, frcnn-vg-hf",
    "vg-x101": "the ResNeXt-101 of Pythia and ViLBERT: vg-x101, vg-x101-iglue",
    "bua-caffe": "MILVLG's Caffe mode of bottom-up attention: bua-r101-36, bua-r101-10-100",
    "bua-d2": "MILVLG's detectron2 mode of bottom-up attention: bua-d2-r101, bua-d2-x152",
    "vinvl": "VinVL: vinvl-x152 and its other filters",
}
DIM, GEOMETRY = 2048, 6
VG_CLASSES, VINVL_CLASSES = 1600, 1594
MOST_RECORDS = 200  # that are looked at
LEAST_REGIONS, LEAST_RECORDS = 100, 5  # before something that was never seen counts as absent
REPEATED = 0.02  # share of regions from which repetition is a habit: pooling alone makes two of them equal now and then
BOUNDS = (10, 100)  # regions of an image, between which Caffe's order is that of the proposals
EDGE, NEAR = 0.05, 2.5  # pixels from the image's end that count as at it, and as close to it


@dataclass
class Traits:
    """Habits of a cache, summed up over its first records.

    Attributes:
        vocabulary: length of the list of classes, 0 without one. A sorted list of a length that no family has counts
            as none: it may be of the names that occur in a table without a label map (formats/labelmap.py).
        dims, counts: numbers of a feature, and regions of an image -> records.
        highest_class: greatest class id, -1 without.
        with_attributes: records that have attribute ids.
        falling: number of regions -> records that have scores which fall from region to region; `rising` and `mixed`
            are those in which they do not while class ids rise, and the rest.
        repeated: regions whose feature an earlier one of the same image has.
        outranked: regions that have a score below the probability of their class.
        at_edge, near_edge: records with a box that ends where the image does or beyond, and those in which one ends
            close before it and none there.
    """

    vocabulary: int = 0
    records: int = 0
    regions: int = 0
    dims: Counter[int] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)
    highest_class: int = -1
    with_attributes: int = 0
    falling: Counter[int] = field(default_factory=Counter)
    rising: int = 0
    mixed: int = 0
    repeated: int = 0
    outranked: int = 0
    at_edge: int = 0
    near_edge: int = 0

    @classmethod
    def of(cls, vocabularies: Mapping[str, Sequence[str]], records: Iterable[Regions | Problem] = ()) -> Traits:
        """Those of a cache with these names of classes, from as many of its records as are looked at."""
        names = list(vocabularies.get("classes") or ())
        whole = len(names) in (VG_CLASSES, VINVL_CLASSES) or names != sorted(names)
        traits = cls(len(names) if whole else 0)
        for record in records:
            if traits.records == MOST_RECORDS:
                break
            if isinstance(record, Regions):
                traits.add(record)
        return traits

    def add(self, record: Regions) -> None:
        """Take in a record, if it is one of the first."""
        if self.records == MOST_RECORDS or not len(record):
            return
        self.records += 1
        self.regions += len(record)
        self.dims[record.features.shape[1]] += 1
        self.counts[len(record)] += 1
        rows = {xxhash.xxh3_64_intdigest(row.tobytes()) for row in record.features}
        self.repeated += len(record) - len(rows)
        self.with_attributes += record.attr_ids is not None
        if record.class_ids is not None:
            self.highest_class = max(self.highest_class, int(record.class_ids.max()))
        self._add_order(record)
        self._add_edges(record)

    def _add_order(self, record: Regions) -> None:
        if record.scores is None:
            return
        if record.class_probs is not None:
            self.outranked += int((record.scores < record.class_probs - 1e-4).sum())
        if (np.diff(record.scores) <= 0).all():
            self.falling[len(record)] += 1
        elif record.class_ids is not None and (np.diff(record.class_ids) >= 0).all():
            self.rising += 1
        else:
            self.mixed += 1

    def _add_edges(self, record: Regions) -> None:
        size = np.array([record.width, record.height])
        left = size - record.boxes[:, 2:].max(axis=0)
        if (left < EDGE).any():
            self.at_edge += 1
        elif (left < NEAR).any():
            self.near_edge += 1

    def possible(self) -> tuple[str, ...]:
        """The families that have all of these habits; all of them where there are no records."""
        return tuple(name for name in FAMILIES if all(name in families for _, families in self.habits()))

    def habits(self) -> Iterator[tuple[str, frozenset[str]]]:
        """What was seen that tells families apart, in words, and the families that do so."""
        every = frozenset(FAMILIES)
        for dim in self.dims:
            if dim == DIM + GEOMETRY:
                yield f"{dim} numbers a feature: {DIM} and the geometry of the box", frozenset({"vinvl"})
            elif dim != DIM:
                yield f"{dim} numbers a feature, not {DIM}", frozenset()
        if self.vocabulary:
            known = {VG_CLASSES: every - {"vinvl"}, VINVL_CLASSES: frozenset({"vinvl"})}
            yield f"{self.vocabulary:,} classes by name", known.get(self.vocabulary, frozenset())
        elif self.highest_class > VINVL_CLASSES:  # one more than its last: some count the background
            families = every - {"vinvl"} if self.highest_class <= VG_CLASSES else frozenset()
            yield f"class ids up to {self.highest_class:,}", families
        if self.with_attributes:
            yield "attributes", every - {"vg-x101"}
        if set(self.counts) == {36} and self.records >= LEAST_RECORDS:
            yield "always 36 regions", frozenset({"vg-r101", "bua-caffe"})
        yield from self._order()
        yield from self._repetition()
        yield from self._edges()

    def _order(self) -> Iterator[tuple[str, frozenset[str]]]:
        every = frozenset(FAMILIES)
        # the same number in nearly all images is a bound of its own
        between = sum(n for k, n in self.falling.items() if BOUNDS[0] < k < BOUNDS[1] and k != max(self.counts))
        if self.mixed:
            yield f"in {self.mixed:,} images, regions in an order of their own, not of scores", frozenset({"bua-caffe"})
        elif self.rising:
            yield f"in {self.rising:,} images, regions in the order of their classes", frozenset({"vinvl"})
        elif between >= LEAST_RECORDS and between > self.records / 4:
            yield f"between {BOUNDS[0]} and {BOUNDS[1]} regions, all of them best first", every - {"bua-caffe"}
        if self.outranked:
            families = every - {"bua-d2", "vinvl"}
            yield f"{self.outranked:,} regions rank by another class than their most probable one", families

    def _repetition(self) -> Iterator[tuple[str, frozenset[str]]]:
        if self.repeated > REPEATED * self.regions:
            families = frozenset({"bua-d2"} | ({"vinvl"} if self.rising else set()))
            yield f"{self.repeated:,} of {self.regions:,} regions repeat one, for another class", families
        elif self.regions >= LEAST_REGIONS and self.records >= LEAST_RECORDS:
            yield f"{self.repeated:,} of {self.regions:,} regions repeat one", frozenset(FAMILIES) - {"bua-d2"}

    def _edges(self) -> Iterator[tuple[str, frozenset[str]]]:
        every = frozenset(FAMILIES)
        if self.at_edge:
            yield f"in {self.at_edge:,} images, boxes that end with the image or beyond", every - {"bua-caffe", "vinvl"}
        elif self.near_edge >= LEAST_RECORDS:
            yield f"in {self.near_edge:,} images, boxes that end a pixel before the image", every - {"vg-r101"}

    def hints(self) -> list[str]:
        """What there is to say about the family, for people: first the families, then what tells so."""
        if not any(dim in (DIM, DIM + GEOMETRY) for dim in self.dims):
            return []  # grids, and detectors of other kinds
        seen = [text for text, families in self.habits() if len(families) < len(FAMILIES)]
        named = [f"{name} ({FAMILIES[name]})" for name in self.possible()]
        if not named:
            return ["its records are like those of no family that is known here; were its regions given?", *seen]
        return [f"its records are like those of {' or of '.join(named)}", *seen] if seen else []

    def to_dict(self) -> dict[str, Any]:
        return {"families": list(self.possible()), "hints": self.hints()}


def apart(a: Traits, b: Traits) -> list[str]:
    """How two caches are of different families, then what tells so; nothing where they may be of one."""
    families = a.possible(), b.possible()
    if not all(families) or set(families[0]) & set(families[1]):
        return []
    mine, theirs = (" or ".join(names) for names in families)
    told = [f"{side}: {text}" for side, traits in (("A", a), ("B", b)) for text, _ in traits.habits()]
    return [f"another family of detectors: A is like {mine}, B like {theirs}", *told]
