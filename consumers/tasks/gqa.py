"""GQA (Hudson and Manning, CVPR 2019) and xGQA (Pfeiffer et al., ACL Findings 2022): questions about a picture.

An answer is one of 1,842 English ones in every language; an answer outside them has no class, and no prediction of a
class can be right. xGQA's published scores are of its few-shot test set: the questions of the balanced test-dev set
that are neither in the few-shot dev set nor in the largest few-shot training set. What type a question is of is told by
the row itself, or by another file that has the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from cache import DataError

from .base import Count, Example, Selection, Task, example, image_keys
from .files import find_file, read_json
from .vqa import ENGLISH, training_task

LANGUAGES = ("en", "bn", "de", "id", "ko", "pt", "ru", "zh")
SHOTS = {"1": Count(27, 1), "5": Count(155, 5), "10": Count(317, 10), "20": Count(594, 20), "25": Count(704, 25)}
SHOTS |= {"48": Count(1490, 48)}
TYPES = ("structural", "semantic")  # by which results are broken down
EXAMPLES = [
    {"img_id": "n161313", "label": {"yes": 1.0}, "question_id": "1", "sent": "Is it red?"},
    {"img_id": "n161314", "label": {"table": 1.0, "desk": 0.3}, "question_id": "2", "sent": "What is that?"},
    {"img_id": "n161314", "label": {"bottle cap": 1.0}, "question_id": "3", "sent": "What is on the table?"},
]
QUESTIONS = {  # in GQA's own form
    row["question_id"]: {
        "imageId": row["img_id"],
        "answer": next(iter(row["label"])),
        "question": row["sent"],
        "types": {"structural": "query", "semantic": "obj"},
    }
    for row in EXAMPLES
}
DEV, TEST, FULL = Count(1422, 50), Count(9666, 300), Count(12578, 398)


class Gqa(Task):
    """GQA in English, tested on its balanced test-dev questions."""

    name = "gqa"
    folders = ("gqa",)
    head = "gqa"
    languages = ("en",)
    max_tokens = 40
    counts = {Selection("test"): FULL}
    examples = {
        **{f"gqa/annotations/{name}.json": EXAMPLES for name in ("train", "valid", "testdev")},
        "gqa/annotations/trainval_label2ans.json": ["yes", "no", "table", "desk"],
    }
    FILES = {"train": "train.json", "dev": "valid.json", "test": "testdev.json"}

    @cached_property
    def labels(self) -> list[str]:
        """The answers. Raises: InputNotFound, DataError."""
        path = self.folder("annotations") / "trainval_label2ans.json"
        labels = read_json(path)
        if not isinstance(labels, list) or len(set(labels)) != len(labels):
            raise DataError(f"{path} is not a list of different answers")
        return labels

    @cached_property
    def classes(self) -> dict[str, int]:
        return {answer: number for number, answer in enumerate(self.labels)}

    @cached_property
    def types(self) -> dict[str, dict[str, str]]:
        """Question id -> types, of the questions that the files here tell them of. Raises: DataError."""
        found: dict[str, dict[str, str]] = {}
        for path in self._typed_files():
            for row, record in enumerate(_records(path) if find_file(path) else (), 1):
                found |= example(path, row, record, _types_of)
        return found

    def _typed_files(self) -> list[Path]:
        return [self.folder("annotations") / "testdev_balanced_questions.json"]

    def is_right(self, example: Example, said: str) -> bool:
        return said == example.answer

    def path(self, selection: Selection) -> Path:
        if selection.language != "en" or selection.shots or selection.translated:
            raise self.refuse(selection)
        return self.folder("annotations") / self.FILES[selection.split]

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        for row, record in enumerate(_records(path), 1):
            yield example(path, row, record, self._read)

    def _read(self, record: dict[str, Any]) -> Example:
        if "label" in record:  # LXMERT's form
            scores, text = record["label"], record["sent"]
        else:  # GQA's own
            scores, text = {record["answer"]: 1.0}, record["question"]
        labels = {self.classes[answer]: score for answer, score in scores.items() if answer in self.classes}
        answer = max(scores, key=scores.get, default="")
        number = str(record["question_id"])
        types = record.get("types") or self.types.get(number, {})
        facts = {name: str(types[name]) for name in TYPES if name in types}
        return Example(number, text, image_keys(record), labels, answer, facts)


def _types_of(record: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {str(record["question_id"]): dict(record["types"])}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """A list of records, or a mapping of question ids to them. Raises: InputNotFound, DataError."""
    found = read_json(path)
    if isinstance(found, dict):
        for number, record in found.items():
            yield {**record, "question_id": number} if isinstance(record, dict) else record
    elif isinstance(found, list):
        yield from found
    else:
        raise DataError(f"{path} is neither a JSON list of questions nor an object of them by their ids")


class Xgqa(Gqa):
    """xGQA: tested in eight languages, and trained on GQA, or on VQA with translated questions and English answers."""

    name = "xgqa"
    folders = ("xGQA",)
    languages = LANGUAGES
    eval_sets = ("fewshot-test", "full")
    counts = {
        **{Selection("test", language): TEST for language in LANGUAGES},
        **{Selection("dev", language): DEV for language in LANGUAGES},
        **{Selection("train", language, shots): count for language in LANGUAGES for shots, count in SHOTS.items()},
    }

    examples = {
        **Gqa.examples,
        "xGQA/annotations/few_shot/en/dev.json": dict(list(QUESTIONS.items())[:1]),
        "xGQA/annotations/few_shot/de/train_1.json": QUESTIONS,
        "xGQA/annotations/few_shot/de/dev.json": QUESTIONS,
        "xGQA/annotations/few_shot/de/test.json": QUESTIONS,
        "xGQA/annotations/few_shot/en/test.json": QUESTIONS,
    }

    def __init__(self, annotations: str | Path, eval_set: str = "fewshot-test", train_on: str = "gqa"):
        """`eval_set`: "fewshot-test", the published scores' own, or "full", all of the balanced test-dev set.
        `train_on`: see `training_task`."""
        super().__init__(annotations)
        self.eval_set = self.check_eval_set(eval_set)
        self._gqa = Gqa(annotations)
        self.training = training_task(annotations, train_on, ENGLISH)

    @cached_property
    def labels(self) -> list[str]:
        return self.training.labels

    def _typed_files(self) -> list[Path]:
        folder = self.folder("annotations", "few_shot", "en")
        return [*self._gqa._typed_files(), folder / "dev.json", folder / "train_48.json"]

    def _trains_elsewhere(self, selection: Selection) -> bool:
        return selection.split != "test" and not selection.shots and self.training.name != "gqa"

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        known = self.training.languages if self._trains_elsewhere(selection) else LANGUAGES
        if language not in known or (shots is not None and (split != "train" or shots not in SHOTS)):
            raise self.refuse(selection)
        if split == "test":
            return self._test_path(language, translated)
        if self._trains_elsewhere(selection):
            return self.training.path(selection)
        if translated:
            raise self.refuse(selection)
        if split == "train" and shots is None:
            if language != "en":
                raise self.refuse(selection)
            return self._gqa.path(selection)
        return self.folder("annotations", "few_shot", language) / f"{f'train_{shots}' if shots else 'dev'}.json"

    def _test_path(self, language: str, translated: bool) -> Path:
        """The file of the evaluation set, or the full test-dev file, from which `read` takes it."""
        base = "annotations_machine-translate" if translated else "annotations"
        few = self.folder(base, "few_shot", language) / "test.json"
        if self.eval_set == "fewshot-test" and find_file(few):
            return few
        full = self.folder(base, "zero_shot") / f"testdev_balanced_questions_{language}.json"
        return self._gqa.path(Selection("test")) if language == "en" and find_file(full) is None else full

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        if self._trains_elsewhere(selection):
            yield from self.training.read(path, selection)
            return
        left_out: frozenset[str] = frozenset()
        if selection.split == "test" and self.eval_set == "fewshot-test" and path.name != "test.json":
            left_out = self._few_shot_ids
        yield from (one for one in super().read(path, selection) if one.id not in left_out)

    def gold(self, selection: Selection) -> list[Example]:
        """The same questions have the same answers in every language, so English stands in for a missing file."""
        here = selection if selection.split != "test" or self.is_there(selection) else Selection("test")
        return self.load(here)

    @cached_property
    def _few_shot_ids(self) -> frozenset[str]:
        """Questions of the few-shot dev set and of the largest training set, which holds the smaller ones; the same
        in every language."""
        folder = self.folder("annotations", "few_shot", "en")
        files = (folder / "dev.json", folder / "train_48.json")
        rows = ((path, row, record) for path in files for row, record in enumerate(_records(path), 1))
        return frozenset(example(*one, lambda record: str(record["question_id"])) for one in rows)
