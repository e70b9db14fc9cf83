"""XVNLI (Bugliarello et al., ICML 2022): does a sentence follow from a picture, contradict it, or neither?

The picture is the premise; of the text only the hypothesis is read. Rows whose annotators did not agree carry the label
"-": they are kept, and no answer to them is right, as published (1,164 rows, 14 of them so); the evaluation set
"labelled" leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cache import DataError

from .base import SPLITS, Count, Example, Selection, Task, example, image_keys
from .files import find_file, read_json_lines

LABELS = ("contradiction", "neutral", "entailment")
UNLABELLED = "-"
LANGUAGES = ("en", "ar", "es", "fr", "ru")
SHOTS = {"1": Count(3, 1), "5": Count(18, 5), "10": Count(39, 10), "20": Count(75, 20), "25": Count(90, 25)}
SHOTS |= {"48": Count(168, 48)}
EXAMPLES = [
    {"gold_label": label, "sentence2": text, "pairID": f"{n}", "Flikr30kID": f"{n // 2}.jpg"}
    for n, (text, label) in enumerate(
        [("a dog runs", "entailment"), ("a cat", "contradiction"), ("it is old", "neutral"), ("", "-")]
    )
]


class Xvnli(Task):
    name = "xvnli"
    folders = ("XVNLI",)
    head = "xvnli"
    languages = LANGUAGES
    labels = LABELS
    eval_sets = ("all", "labelled")
    counts = {
        **{Selection("test", language): Count(1164, 357) for language in LANGUAGES},
        **{Selection("test", language, translated=True): Count(1164, 357) for language in LANGUAGES[1:]},
        **{Selection("dev", language, translated=True): None for language in LANGUAGES[1:]},
        **{Selection("train", language, shots): count for language in LANGUAGES for shots, count in SHOTS.items()},
    }

    examples = {
        **{f"XVNLI/annotations/en/{split}.jsonl": EXAMPLES for split in SPLITS},
        "XVNLI/annotations/ar/test.jsonl": EXAMPLES,
        "XVNLI/annotations/ar/train_1.jsonl": EXAMPLES,
    }

    def __init__(self, annotations: str | Path, eval_set: str = "all"):
        """`eval_set`: "all", the published scores' own, or "labelled", test rows with a label only."""
        super().__init__(annotations)
        self.eval_set = self.check_eval_set(eval_set)

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        if language not in LANGUAGES:
            raise self.refuse(selection)
        if split == "test" and not shots:
            folder = self.folder("annotations_machine-translate" if translated else "annotations", language)
            plain = folder / "test.jsonl"
            return folder / "test_gmt.jsonl" if translated and find_file(plain) is None else plain
        folder = self.folder("annotations", language)
        if split == "train" and not translated and (shots in SHOTS or shots is None and language == "en"):
            return folder / (f"train_{shots}.jsonl" if shots else "train.jsonl")
        if split == "dev" and not shots and translated == (language != "en"):
            return self.folder("annotations", "en") / (f"dev-{language}_gmt.jsonl" if translated else "dev.jsonl")
        raise self.refuse(selection)

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        labelled = selection.split == "test" and self.eval_set == "labelled"
        for row, record in enumerate(read_json_lines(path), 1):
            one = example(path, row, record, _read)
            if one.labels or not labelled:
                yield one


def _read(record: dict) -> Example:
    label = record["gold_label"]
    if label != UNLABELLED and label not in LABELS:
        raise DataError(f"gold_label {label!r} is not one of {', '.join(LABELS)} or {UNLABELLED}")
    labels = {} if label == UNLABELLED else {LABELS.index(label): 1.0}
    return Example(record["pairID"], record["sentence2"], image_keys(record), labels, label)
