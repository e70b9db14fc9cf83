"""VSR (Liu, Emerson and Collier, TACL 2023): is a caption about where two things are true of a picture?

Two ways of splitting the same captions: at random, and by concepts, so that none of the things of the test captions was
seen in training. The files of the second one have other rows than the paper prints (see `paper_rows`). Two further
tasks are made of the first split: which frame of reference a true caption with left or right takes, and the captions
with left or right alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from cache import DataError

from ..metrics import macro_scores
from .base import SPLITS, Count, Example, Selection, Task, example, image_keys
from .files import find_file, read_json_lines
from .vsr_relations import LEFT_RIGHT, category_of

LABELS = ("False", "True")
FRAMES = ("intrinsic", "relative", "both")  # by the number that the files have
SAMPLES = {"100": 100, "25%": 0.25, "50%": 0.5, "75%": 0.75}  # of the training set: rows, or a share of them
VERBS = {"contains": "contain", "consists of": "consist of", "has as a part": "have as a part"}  # without "is"
CAPTIONS = [  # caption, relation, label, frame
    ("The cat is inside the refrigerator.", "inside", 0, None),
    ("The bench is at the left side of the train.", "at the left side of", 1, 1.0),
    ("The person is left of the dog.", "left of", 1, 0.0),
    ("The train contains the laptop.", "contains", 1, None),
    ("The cup is right of the person.", "right of", 0, None),
    ("The bird is at the right side of the bus.", "at the right side of", 1, 1.0),
]
AGREED, NOBODY = "[1, 2, 3]", "[]"  # lists within texts, as the splits have them
EXAMPLES = [
    {
        "image": f"{n:012d}.jpg",
        "image_link": f"http://images.cocodataset.org/train2017/{n:012d}.jpg",
        "caption": caption,
        "label": label,
        "relation": relation,
        "annotator_id": 1,
        "vote_true_validator_id": AGREED if label else NOBODY,
        "vote_false_validator_id": NOBODY if label else AGREED,
        "reference_frame": frame,
    }
    for n, (caption, relation, label, frame) in enumerate(CAPTIONS)
]
CONCEPT_EXAMPLES = [
    {**{name: value for name, value in row.items() if name != "reference_frame"}, "subj": "cat", "obj": "dog"}
    for row in EXAMPLES
]


class Vsr(Task):
    """VSR, split at random; smaller training sets are samples of the whole, each within the next larger one."""

    name = "vsr"
    split = "random"
    folders = ("vsr", "visual-spatial-reasoning")
    head = "vsr"
    languages = ("en",)
    max_tokens = 40
    labels: Sequence[str] = LABELS
    counts = {
        Selection("train"): Count(7680, 4968),
        Selection("dev"): Count(1097, 1017),
        Selection("test"): Count(2195, 1874),
        Selection("train", shots="100"): Count(100, 99),
        Selection("train", shots="25%"): Count(1920, 1666),
        Selection("train", shots="50%"): Count(3840, 2978),
        Selection("train", shots="75%"): Count(5760, 4064),
    }
    examples = {f"vsr/data/splits/random/{split}.jsonl": EXAMPLES for split in SPLITS}

    def path(self, selection: Selection) -> Path:
        if selection not in self.counts:
            raise self.refuse(selection)
        name = f"{selection.split}.jsonl"
        places = ("data", "splits", self.split), ("splits", self.split), (self.split,), ()
        paths = [self.folder(*inside) / name for inside in places]
        return next((path for path in paths if find_file(path)), paths[0])

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        rows = enumerate(read_json_lines(path))
        records = [(row, record) for row, record in rows if example(path, row + 1, record, self.has)]
        if selection.shots:
            records = _sample(records, selection.shots)
        for row, record in records:
            yield example(path, row + 1, record, lambda record, row=row: self.example(str(row), record))

    def has(self, record: dict[str, Any]) -> bool:
        """Whether a row belongs to the task."""
        return True

    def example(self, name: str, record: dict[str, Any]) -> Example:
        if record["label"] not in (0, 1):
            raise DataError(f"label {record['label']!r} is neither 0 nor 1")
        label = int(record["label"])
        return Example(name, record["caption"], image_keys(record), {label: 1.0}, LABELS[label], facts(record))

    def more_stats(self) -> dict[str, Any]:
        from ..vsr_analysis import dataset_tables

        return dataset_tables(self)


class VsrZeroshot(Vsr):
    """VSR, split by concepts: those of the test captions are in no training caption."""

    name = "vsr-zeroshot"
    split = "zeroshot"
    counts = {
        Selection("train"): Count(3489, 2249),
        Selection("dev"): Count(340, 227),
        Selection("test"): Count(1222, 715),
        Selection("train", shots="100"): Count(100, 100),
        Selection("train", shots="25%"): Count(872, 766),
        Selection("train", shots="50%"): Count(1744, 1361),
        Selection("train", shots="75%"): Count(2616, 1850),
    }
    paper_rows = {Selection("train"): 4713, Selection("dev"): 231, Selection("test"): 616}
    examples = {f"vsr/data/splits/zeroshot/{split}.jsonl": CONCEPT_EXAMPLES for split in SPLITS}


class VsrLeftRight(Vsr):
    """The captions of the random split whose relation has a left or a right."""

    name = "vsr-left-right"
    counts = {
        Selection("train"): Count(838, 788),
        Selection("dev"): Count(141, 140),
        Selection("test"): Count(245, 239),
    }

    def has(self, record: dict[str, Any]) -> bool:
        return record.get("relation") in LEFT_RIGHT


class VsrFrames(Vsr):
    """Which frame of reference a true caption of the random split takes; those that are true in both are left out."""

    name = "vsr-frames"
    labels = FRAMES[:2]
    counts = {
        Selection("train"): Count(392, 375),
        Selection("dev"): Count(74, 74),
        Selection("test"): Count(120, 117),
    }

    def has(self, record: dict[str, Any]) -> bool:
        return frame_of(record) in self.labels

    def example(self, name: str, record: dict[str, Any]) -> Example:
        frame = frame_of(record)
        return Example(name, record["caption"], image_keys(record), {FRAMES.index(frame): 1.0}, frame, facts(record))

    def more_scores(self, examples: Sequence[Example], right: Sequence[bool]) -> dict[str, float]:
        """Precision, recall and F1 as means over both frames, of which one is rare."""
        gold = [FRAMES.index(one.answer) for one in examples]
        return macro_scores(gold, [label if hit else 1 - label for label, hit in zip(gold, right, strict=True)])


def facts(record: dict[str, Any]) -> dict[str, str]:
    """What results are broken down by."""
    found = {"relation": record["relation"], "category": category_of(record["relation"])}
    frame = frame_of(record)
    return found | {"frame": frame} if frame else found


def frame_of(record: dict[str, Any]) -> str | None:
    """The frame of reference that a row is annotated with, if it is. Raises: DataError."""
    frame = record.get("reference_frame")
    if frame is None or frame != frame:
        return None
    if frame not in range(len(FRAMES)):
        raise DataError(f"reference_frame {frame!r} is not 0, 1 or 2")
    return FRAMES[int(frame)]


def votes(record: dict[str, Any]) -> tuple[int, int]:
    """How many validators said false and how many true. Splits have lists within texts, the raw file has lists.

    Raises: DataError.
    """
    found = []
    for name in ("vote_false_validator_id", "vote_true_validator_id"):
        value = record[name]
        ids = json.loads(value) if isinstance(value, str) else value
        if not isinstance(ids, list):
            raise DataError(f"{name} is {value!r}, not a list of validators")
        found.append(len(ids))
    return found[0], found[1]


def concepts(record: dict[str, Any]) -> tuple[str, str]:
    """The two things that a caption is about. (Of the split by concepts the fields `subj` and `obj` lack the first
    letter of many.) Raises: DataError: the caption is not made as they all are."""
    caption, relation = record["caption"].strip(), record["relation"]
    first, found, second = caption.removesuffix(".").partition(f" {relation} the ")
    if not found or not first.startswith("The "):
        raise DataError(f"caption {caption!r} is not 'The ... (is) {relation} the ...'")
    return first.removeprefix("The ").removesuffix(" is").strip(), second.strip()


def sample_size(name: str, rows: int) -> int:
    """How many of so many rows a sample of SAMPLES has; cut off as published."""
    size = SAMPLES[name]
    return min(size, rows) if isinstance(size, int) else int(size * rows)


def _sample(records: list[tuple[int, dict[str, Any]]], name: str) -> list[tuple[int, dict[str, Any]]]:
    """Rows in their order: those whose picture and caption have the smallest hashes, whatever else is in the file."""
    count = sample_size(name, len(records))
    hashes = [xxhash.xxh3_64_intdigest(f"{record['image']} {record['caption']}".encode()) for _, record in records]
    kept = {row for _, (row, _) in sorted(zip(hashes, records, strict=True), key=lambda one: one[0])[:count]}
    return [one for one in records if one[0] in kept]
