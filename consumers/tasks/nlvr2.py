"""NLVR2 (Suhr et al., ACL 2019) and MaRVL (Liu et al., EMNLP 2021): is a sentence true of two pictures?

MaRVL is tested in five languages on pictures of its own, which bear the same names in other languages: its keys begin
with the language. Rows that repeat a sentence and a pair are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cache import DataError

from ..metrics import percent
from .base import SPLITS, Count, Example, Selection, Task, example, image_keys
from .files import read_json_lines

LABELS = ("False", "True")
LANGUAGES = ("id", "sw", "ta", "tr", "zh")
DEV_LANGUAGES = ("id", "sw", "tr", "zh")
TESTS = {"id": Count(1128, 1091), "sw": Count(1108, 875), "ta": Count(1242, 923)}
TESTS |= {"tr": Count(1180, 917), "zh": Count(1012, 1107)}
SHOTS = {"1": Count(4, 8), "2": Count(8, 16), "4": Count(16, 32), "10": Count(40, 80)}
MOST_SHOTS = {"id": Count(80, 85), "tr": Count(80, 87), "zh": Count(80, 90)}  # two sentences a concept
EXAMPLES = [
    {"identifier": f"dev-{n}-0-{n % 2}", "sentence": text, "label": label}
    for n, (text, label) in enumerate([("two dogs", "True"), ("no dog runs", "False"), ("two dogs", "False")])
]
MARVL_EXAMPLES = [
    {"language": "sw", "id": f"sw-{n}", "concept": "39-Panci", "chapter": "Basic", "caption": text, "label": label,
     "left_img": f"39-{n}.jpg", "right_img": "39-9.jpg"}
    for n, (text, label) in enumerate([("sufuria mbili", True), ("hakuna", False)])
]  # fmt: skip


class Nlvr2(Task):
    """NLVR2 in English; its dev set also translated by machine into MaRVL's languages."""

    name = "nlvr2"
    folders = ("nlvr2",)
    head = "nlvr2"
    languages = ("en",)
    labels = LABELS
    counts = {
        Selection("test"): Count(6967, 8082),
        Selection("dev"): Count(6982, 8102),
        **{Selection("dev", language, translated=True): Count(6982, 8102) for language in DEV_LANGUAGES},
    }

    examples = {f"nlvr2/annotations/{split}.jsonl": EXAMPLES for split in SPLITS}

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        folder = self.folder("annotations")
        if language == "en" and not shots and not translated:
            return folder / f"{split}.jsonl"
        if split == "dev" and language in LANGUAGES and translated and not shots:
            return folder / f"dev-{language}_gmt.jsonl"
        raise self.refuse(selection)

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        for row, record in enumerate(read_json_lines(path), 1):
            yield example(path, row, record, _read_nlvr2)

    def more_scores(self, examples: Sequence[Example], right: Sequence[bool]) -> dict[str, float]:
        """Consistency: percent of the different sentences whose rows are all right."""
        whole: dict[str, bool] = {}
        for one, hit in zip(examples, right, strict=True):
            whole[one.text] = whole.get(one.text, True) and hit
        return {"consistency": percent(sum(whole.values()), len(whole))}


class Marvl(Nlvr2):
    """MaRVL: trained on NLVR2, tested in five languages."""

    name = "marvl"
    folders = ("marvl",)
    languages = LANGUAGES
    counts = {
        **{Selection("test", language): count for language, count in TESTS.items()},
        **{Selection("test", language, translated=True): count for language, count in TESTS.items()},
        **{Selection("train", language, shots): count for language in MOST_SHOTS for shots, count in SHOTS.items()},
        **{Selection("train", language, "10x2"): count for language, count in MOST_SHOTS.items()},
    }

    examples = {**Nlvr2.examples, "marvl/zero_shot/annotations/marvl-sw.jsonl": MARVL_EXAMPLES}

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        if split == "dev" or split == "train" and not shots:
            return Nlvr2(self.annotations).path(selection)
        if selection not in self.counts:
            raise self.refuse(selection)
        if split == "train":
            return self.folder("few_shot", "annotations") / f"marvl-{language}_train{shots}.jsonl"
        if translated:
            return self.folder("zero_shot", "annotations_machine-translate") / f"marvl-{language}_gmt.jsonl"
        return self.folder("zero_shot", "annotations") / f"marvl-{language}.jsonl"

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        if "marvl" not in path.name:
            yield from super().read(path, selection)
            return
        for row, record in enumerate(read_json_lines(path), 1):
            yield example(path, row, record, _read_marvl)


def _labels(label: object) -> dict[int, float]:
    """NLVR2 writes "True", MaRVL true."""
    if str(label) not in LABELS:
        raise DataError(f"label {label!r} is neither {' nor '.join(LABELS)}")
    return {LABELS.index(str(label)): 1.0}


def _read_nlvr2(record: dict) -> Example:
    labels, answer = _labels(record["label"]), str(record["label"])
    return Example(record["identifier"], record["sentence"], image_keys(record), labels, answer)


def _read_marvl(record: dict) -> Example:
    facts = {name: record[name] for name in ("concept", "chapter") if name in record}
    labels, answer = _labels(record["label"]), str(record["label"])
    return Example(record["id"], record["caption"], image_keys(record), labels, answer, facts)
