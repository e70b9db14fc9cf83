"""What the records of a cache are like as a whole, read once, in memory that does not grow with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .contents import Contents
from .distribution import Distribution, short
from .families import Traits
from .formats.base import Problem
from .regions import Regions

EXAMPLES = 5  # keys kept of each kind of trouble
MOST_IDS = 1 << 16  # larger ids are counted together
MOST_SIZES = 1024  # different image sizes that are counted apart
OUTSIDE = 1.0  # pixels that a box may reach beyond the image and count as inside: conventions differ by that much

MEASURES = {
    "regions": "regions per image", "width": "image width, px", "height": "image height, px",
    "box_width": "box width, px", "box_height": "box height, px", "box_area": "box area, share of the image",
    "norm": "norm of a feature", "zeros": "zeros in a feature, share", "peak": "largest number of a feature",
    "score": "score", "class_prob": "class probability", "attr_prob": "attribute probability",
    "bytes": "bytes of a record",
}  # fmt: skip
WHOLE = ("regions", "width", "height", "bytes")
TROUBLES = {
    "no_regions": "without regions",
    "zero_rows": "with a feature that is all zeros",
    "not_finite": "with a feature that is NaN or infinite",
    "outside": "with a box that leaves the image by more than a pixel",
    "degenerate": "with a box that has no area",
    "unit_boxes": "whose boxes all lie within 0..1, as if they were shares of the image's sides",
    "unnamed_ids": "with an id that has no name",
}


@dataclass
class Stats:
    """The sum of a cache.

    Attributes:
        name, format: of the contents; records of `records_in_all`, which is None where it is not known.
        measures: name in MEASURES -> what its numbers are like.
        troubles: name in TROUBLES -> number of records; `troubled_regions` the number of their regions that show it;
            `examples` the first keys.
        classes, attributes: id -> number of regions that have it.
        fields, dtypes, dims: field, and dtype and dimension of the features -> number of records.
        sizes: (width, height) -> number of records, of the first MOST_SIZES sizes.
        unreadable: why records could not be read -> how many; `examples` has keys of `unreadable: WHY`.
        live: bool[d], features that are not zero everywhere.
        traits: habits of the first records, which tell families of detectors apart.
    """

    name: str
    format: str
    records_in_all: int | None
    vocabularies: Mapping[str, Sequence[str]]
    records: int = 0
    measures: dict[str, Distribution] = field(
        default_factory=lambda: {name: Distribution(whole=name in WHOLE) for name in MEASURES}
    )
    troubles: Counter[str] = field(default_factory=Counter)
    troubled_regions: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    classes: Counter[int] = field(default_factory=Counter)
    attributes: Counter[int] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    dims: Counter[int] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    live: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.traits = Traits.of(self.vocabularies)

    @property
    def dead(self) -> int:
        """Features that are zero in every region."""
        return 0 if self.live is None else int(np.count_nonzero(~self.live))

    def named(self, what: str, top: int) -> list[tuple[str, int]]:
        """The `top` most frequent "classes" or "attributes", with their names, or ids where they have none."""
        words = self.vocabularies.get(what, ())
        counts: Counter[int] = getattr(self, what)
        return [(words[i] if 0 <= i < len(words) else str(i), count) for i, count in counts.most_common(top)]

    def to_dict(self, top: int = 20) -> dict[str, Any]:
        unused = {what: self._unused(what) for what in ("classes", "attributes") if self.vocabularies.get(what)}
        return {
            "name": self.name,
            "format": self.format,
            "records": self.records,
            "records_in_all": self.records_in_all,
            "unreadable": dict(self.unreadable),
            "dtypes": dict(self.dtypes),
            "dims": dict(self.dims.most_common(10)),
            "fields": dict(self.fields),
            "dead_features": self.dead,
            "measures": {name: numbers.to_dict() for name, numbers in self.measures.items() if numbers.count},
            "regions_per_image": self._exact("regions"),
            "troubles": {
                name: {"records": count, "regions": self.troubled_regions[name], "examples": self.examples[name]}
                for name, count in self.troubles.items()
            },
            "examples_unreadable": {kind: self.examples[f"unreadable: {kind}"] for kind in self.unreadable},
            "sizes": [{"width": w, "height": h, "records": n} for (w, h), n in self.sizes.most_common(top)],
            "classes": self.named("classes", top),
            "attributes": self.named("attributes", top),
            "unused_names": unused,
            **self.traits.to_dict(),
        }

    def _unused(self, what: str) -> int:
        return len(self.vocabularies[what]) - sum(0 <= i < len(self.vocabularies[what]) for i in getattr(self, what))

    def _exact(self, name: str) -> dict[str, int]:
        numbers = self.measures[name]
        return {f"{short(sum(numbers.edges(place)) / 2):g}": numbers.bins[place] for place in sorted(numbers.bins)}

    # -- one record

    def add(self, record: Regions | Problem, nbytes: int | None = None) -> None:
        """Take in one record. `nbytes` is what it occupies; None for the sum of its arrays."""
        if isinstance(record, Problem):
            self.unreadable[record.kind] += 1
            self._example(f"unreadable: {record.kind}", record.key or record.where)
            return
        self.records += 1
        self.traits.add(record)
        arrays = record.arrays()
        self.fields.update([*arrays, *(["source_digest"] if record.source_digest else [])])
        self.dtypes[str(record.features.dtype)] += 1
        self.dims[record.features.shape[1]] += 1
        size = (record.width, record.height)
        if size in self.sizes or len(self.sizes) < MOST_SIZES:
            self.sizes[size] += 1
        self._measure(record, sum(array.nbytes for array in arrays.values()) if nbytes is None else nbytes)
        self._look_at_features(record)
        self._look_at_boxes(record)
        self._count_ids(record)

    def _measure(self, record: Regions, nbytes: int) -> None:
        for name, values in (
            ("regions", len(record)), ("width", record.width), ("height", record.height), ("bytes", nbytes),
            ("score", record.scores), ("class_prob", record.class_probs), ("attr_prob", record.attr_probs),
        ):  # fmt: skip
            if values is not None:
                self.measures[name].add(values)

    def _look_at_features(self, record: Regions) -> None:
        self._trouble("no_regions", record.key, np.array([not len(record)]))
        features = record.features.astype(np.float32, copy=False)
        if not features.size:
            return
        finite = np.isfinite(features).all(axis=1)
        self._trouble("not_finite", record.key, ~finite)
        features = features[finite]
        used = features != 0
        with np.errstate(over="ignore"):
            self.measures["norm"].add(np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64)))
        self.measures["zeros"].add(1 - used.mean(axis=1) if len(used) else np.empty(0))
        self.measures["peak"].add(features.max(axis=1) if len(features) else np.empty(0))
        self._trouble("zero_rows", record.key, ~used.any(axis=1))
        live = used.any(axis=0)
        if self.live is None or len(self.live) != len(live):
            self.live = live
        else:
            self.live |= live

    def _look_at_boxes(self, record: Regions) -> None:
        boxes = record.boxes.astype(np.float64)
        sides = boxes[:, 2:] - boxes[:, :2]
        frame = np.array([record.width, record.height], np.float64)
        self.measures["box_width"].add(sides[:, 0])
        self.measures["box_height"].add(sides[:, 1])
        self.measures["box_area"].add(np.prod(sides / frame, axis=1))
        outside = (boxes[:, :2] < -OUTSIDE).any(axis=1) | (boxes[:, 2:] > frame + OUTSIDE).any(axis=1)
        self._trouble("outside", record.key, outside)
        self._trouble("degenerate", record.key, (sides <= 0).any(axis=1))
        if len(boxes) and frame.max() > 2 and boxes.min() >= 0 and boxes.max() <= 1:
            self._trouble("unit_boxes", record.key, np.ones(len(boxes), bool))

    def _count_ids(self, record: Regions) -> None:
        unnamed = np.zeros(len(record), bool)
        for what, ids in (("classes", record.class_ids), ("attributes", record.attr_ids)):
            if ids is None:
                continue
            counts: Counter[int] = getattr(self, what)
            for number, count in zip(*np.unique(np.clip(ids, -1, MOST_IDS), return_counts=True), strict=True):
                counts[int(number)] += int(count)
            if words := self.vocabularies.get(what):
                unnamed |= (ids < 0) | (ids >= len(words))
        self._trouble("unnamed_ids", record.key, unnamed)

    def _trouble(self, name: str, key: str, which: np.ndarray) -> None:
        if count := int(np.count_nonzero(which)):
            self.troubles[name] += 1
            self.troubled_regions[name] += count if name != "no_regions" else 0
            self._example(name, key)

    def _example(self, name: str, key: str) -> None:
        keys = self.examples.setdefault(name, [])
        if len(keys) < EXAMPLES:
            keys.append(key)


def collect(contents: Contents, sample: int | None = None, progress: Callable[[], None] = lambda: None) -> Stats:
    """Read a cache once.

    Args:
        sample: look at that many records, always the same ones.
        progress: called after each record.

    Raises: what reading the contents raises; single records that cannot be read are counted.
    """
    stats = Stats(contents.name, contents.format, contents.count(), contents.vocabularies)
    records: Iterable[Regions | Problem] = contents.records(sample)
    for record in records:
        stats.add(record, contents.record_bytes(record))
        progress()
    return stats
