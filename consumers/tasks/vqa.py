"""VQA 2.0 (Goyal et al., CVPR 2017) and VQ2A (Changpinyo et al., NAACL 2022): what MaXM's models are trained on.

Translations lie beside the English files, a row of JSON a line for each question:

    vqa2/translations/train-fr.jsonl     {"question_id": "262148000", "question": "Où regarde-t-il ?", "answer": "bas"}

VQA 2.0 is split as Karpathy and Li (CVPR 2015) split COCO: training is their train and restval. VQ2A's training files
are in the layout of MAVERICS, the sets of the same origin that it is tested on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cache import DataError, InputNotFound, UsageError

from .base import Example, Selection, Task, example, image_keys
from .files import find_file, read_json_lines, read_list

LANGUAGES = ("en", "bn", "de", "fr", "hi", "id", "iw", "ko", "pt", "ro", "ru", "th", "zh")  # of MaXM and of xGQA
CLASSES = 3129  # the most frequent answers, as many as VQA 2.0's classifiers have
AGREED = 0.3  # an answer that a tenth of the annotators gave counts so much, and four of them make it right
KARPATHY = "dataset_coco.json"
ENGLISH, TRANSLATED = "english", "translated"
TRAIN_ON = ("gqa", "vqa2", "vq2a-coco", "vq2a-cc3m")


class Vqa(Task):
    """Questions whose answers are texts.

    Args:
        answers: "translated", or "english" to leave them as they are where questions are translated, as for xGQA.
        vocabulary: language of the answers that are the classes.
    """

    head = "gqa"
    languages = LANGUAGES
    max_tokens = 40
    counts = {Selection(split, language): None for split in ("train", "dev", "test") for language in LANGUAGES}

    def __init__(self, annotations: str | Path, answers: str = TRANSLATED, vocabulary: str = "en"):
        super().__init__(annotations)
        if answers not in (ENGLISH, TRANSLATED):
            raise UsageError(f"answers {answers!r} are not {ENGLISH} or {TRANSLATED}")
        if vocabulary not in LANGUAGES:
            raise UsageError(f"{self.name} has no answers in {vocabulary!r}; there are {', '.join(LANGUAGES)}")
        self._answers, self._vocabulary = answers, vocabulary
        self._kept: tuple[str, list[Example]] = ("", [])

    @cached_property
    def labels(self) -> list[str]:
        """The most frequent answers to train on, the more frequent first. Raises: InputNotFound, DataError."""
        selection = Selection("train", self._vocabulary)
        counts = Counter(row.answer for row in self._rows(self.path(selection), selection, {}))
        return sorted(counts, key=lambda answer: (-counts[answer], answer))[:CLASSES]

    @cached_property
    def classes(self) -> dict[str, int]:
        return {answer: number for number, answer in enumerate(self.labels)}

    def is_right(self, example: Example, said: str) -> bool:
        return said.strip() == example.answer.strip()

    def path(self, selection: Selection) -> Path:
        if selection.language not in LANGUAGES or selection.shots or selection.translated:
            raise self.refuse(selection)
        if selection.language == "en":
            return self.english(selection.split)
        return self.folder() / "translations" / f"{selection.split}-{selection.language}.jsonl"

    def english(self, split: str) -> Path:
        """The file of the English questions of a split."""
        raise NotImplementedError

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        yield from self._rows(path, selection, self.classes)

    def _rows(self, path: Path, selection: Selection, classes: Mapping[str, int]) -> Iterator[Example]:
        english = self._english(selection.split)
        if selection.language == "en":
            yield from (self._example(row, classes, "en") for row in english)
            return
        translations = {}
        for number, record in enumerate(read_json_lines(path), 1):
            key, *texts = example(path, number, record, self._translation)
            translations[key] = texts
        for row in english:
            if row.id not in translations:
                raise DataError(f"{path} lacks a translation of question {row.id} of {self.english(selection.split)}")
            text, answer = translations[row.id]
            if self._answers == ENGLISH:
                yield self._example(row, classes, "en", text)
            else:
                own = Example(
                    row.id, text, row.images, answer=answer, answers=(answer,), answered_in=selection.language
                )
                yield self._example(own, classes, selection.language)

    def _translation(self, record: Mapping[str, Any]) -> tuple[str, str, str]:
        answer = "" if self._answers == ENGLISH else str(record["answer"])
        return str(record["question_id"]), str(record["question"]), answer

    def _example(self, row: Example, classes: Mapping[str, int], language: str, text: str | None = None) -> Example:
        counts = Counter(row.answers)
        scores = {answer: min(1.0, AGREED * count) if len(row.answers) > 1 else 1.0 for answer, count in counts.items()}
        labels = {classes[answer]: score for answer, score in scores.items() if answer in classes}
        return Example(
            row.id, row.text if text is None else text, row.images, labels, row.answer, answers=row.answers,
            answered_in=language,
        )  # fmt: skip

    def _english(self, split: str) -> list[Example]:
        """`english_rows`, kept until another split is asked for, since languages are read one after the other."""
        if self._kept[0] != split:
            self._kept = split, list(self.english_rows(split))
        return self._kept[1]

    def english_rows(self, split: str) -> Iterator[Example]:
        """The English questions of a split, without classes."""
        raise NotImplementedError


QUESTION = "v2_OpenEnded_mscoco_{}_questions.json"
ANNOTATION = "v2_mscoco_{}_annotations.json"
PARTS = ("train2014", "val2014")
KARPATHY_SPLITS = {"train": ("train", "restval"), "dev": ("val",), "test": ("test",)}


def _miniature_vqa2() -> dict[str, Any]:
    images = {"train2014": (9, 25), "val2014": (42, 73, 74)}
    splits = {9: "train", 25: "train", 42: "restval", 73: "val", 74: "test"}
    files: dict[str, Any] = {f"vqa2/{KARPATHY}": {"images": [{"cocoid": k, "split": v} for k, v in splits.items()]}}
    for part, ids in images.items():
        rows = [{"image_id": one, "question": f"What is in picture {one}?", "question_id": one * 1000} for one in ids]
        given = [{"answer": answer} for answer in ["a dog"] * 7 + ["dog"] * 3]
        answers = [
            {"question_id": row["question_id"], "multiple_choice_answer": "a dog", "answers": given} for row in rows
        ]
        files[f"vqa2/{QUESTION.format(part)}"] = {"questions": rows}
        files[f"vqa2/{ANNOTATION.format(part)}"] = {"annotations": answers}
    for split, ids in (("train", (9, 25, 42)), ("dev", (73,)), ("test", (74,))):
        files[f"vqa2/translations/{split}-fr.jsonl"] = [
            {"question_id": one * 1000, "question": f"Que montre l'image {one} ?", "answer": "un chien"} for one in ids
        ]
    return files


class Vqa2(Vqa):
    """VQA 2.0, from the questions and annotations as they are published, and Karpathy's split of COCO."""

    name = "vqa2"
    folders = ("vqa2", "VQA2", "VQAv2")
    examples = _miniature_vqa2()

    def english(self, split: str) -> Path:
        return self.folder() / QUESTION.format(PARTS[split != "train"])

    @cached_property
    def _splits(self) -> dict[int, str]:
        path = self.folder() / KARPATHY
        if find_file(path) is None:
            raise InputNotFound(f"{path}, Karpathy's split of COCO by which {self.name} is divided, is not there")
        rows = enumerate(read_list(path, "images"), 1)
        return dict(example(path, row, record, lambda one: (int(one["cocoid"]), one["split"])) for row, record in rows)

    def english_rows(self, split: str) -> Iterator[Example]:
        for part in PARTS:
            if part == "train2014" and split != "train":  # none of it is held out
                continue
            path, answered = self.folder() / QUESTION.format(part), self.folder() / ANNOTATION.format(part)
            answers = {}
            for row, record in enumerate(read_list(answered, "annotations"), 1):
                key, *rest = example(answered, row, record, _annotation)
                answers[key] = rest
            for row, record in enumerate(read_list(path, "questions"), 1):
                image = example(path, row, record, lambda one: int(one["image_id"]))
                if self._splits.get(image) in KARPATHY_SPLITS[split]:
                    yield example(path, row, record, lambda one, part=part: _vqa2_row(one, part, answers))  # noqa: B023


def _annotation(record: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    given = tuple(str(one["answer"]) for one in record["answers"])
    return str(record["question_id"]), str(record["multiple_choice_answer"]), given


def _vqa2_row(record: Mapping[str, Any], part: str, answers: Mapping[str, tuple[str, tuple[str, ...]]]) -> Example:
    key = str(record["question_id"])
    if key not in answers:
        raise DataError(f"{ANNOTATION.format(part)} has no answers to question {key}")
    answer, given = answers[key]
    images = _coco_keys(f"COCO_{part}_{int(record['image_id']):012d}.jpg")
    return Example(key, record["question"], images, answer=answer, answers=given)


@lru_cache(maxsize=2**18)  # more than COCO has pictures: their questions share the keys
def _coco_keys(name: str) -> tuple[tuple[str, ...], ...]:
    return image_keys({"file_name": name})


def _maverics(name: str, images: tuple[str, ...], split: str) -> dict[str, Any]:
    pairs = [
        {"image_id": image, "caption": "a red bus", "qa_pairs": [
            {"question_id": f"{split}-{image}", "raw_question": "what color is the bus?",
             "question": "what color is the bus ?", "answers": ["red"] * 10}]}
        for image in images
    ]  # fmt: skip
    return {"dataset": name, "split": split, "annotations": pairs}


class Vq2a(Vqa):
    """VQ2A: `train.json` and `dev.json` in the layout of MAVERICS, whose own file is the test set."""

    maverics: str

    def english(self, split: str) -> Path:
        return self.folder() / (self.maverics if split == "test" else f"{split}.json")

    def english_rows(self, split: str) -> Iterator[Example]:
        path = self.english(split)
        for row, record in enumerate(read_list(path, "annotations"), 1):
            yield from example(path, row, record, self._pairs)

    def _pairs(self, record: Mapping[str, Any]) -> list[Example]:
        found = []
        for pair in record["qa_pairs"]:
            if not isinstance(pair["answers"], list):
                raise DataError(f"answers are {str(pair['answers'])[:100]}; wanted is a list of them")
            answers = tuple(map(str, pair["answers"]))
            best = Counter(answers).most_common(1)[0][0] if answers else ""
            text = pair.get("raw_question") or pair["question"]
            key = str(pair["question_id"])
            found.append(Example(key, text, self.image(str(record["image_id"])), answer=best, answers=answers))
        return found

    def image(self, name: str) -> tuple[tuple[str, ...], ...]:
        """The keys of a picture by its id."""
        raise NotImplementedError


class Vq2aCoco(Vq2a):
    """VQ2A from COCO's captions."""

    name = "vq2a-coco"
    folders = ("vq2a-coco", "vq2a_coco")
    maverics = "maverics_coco.json"
    examples = {
        "vq2a-coco/train.json": _maverics("vq2a-coco", ("9", "25"), "train"),
        "vq2a-coco/dev.json": _maverics("vq2a-coco", ("73",), "dev"),
        "vq2a-coco/maverics_coco.json": _maverics("maverics_coco", ("74",), "test"),
    }

    def image(self, name: str) -> tuple[tuple[str, ...], ...]:
        stem = name.removesuffix(".jpg").rpartition("_")[2]
        if not stem.isdigit():
            raise DataError(f"{name!r} is not the number or the file of a picture of COCO")
        return _coco_keys(name if "_" in name else f"{int(stem):012d}.jpg")


class Vq2aCc3m(Vq2a):
    """VQ2A from Conceptual Captions; pictures are named by the ids of the file."""

    name = "vq2a-cc3m"
    folders = ("vq2a-cc3m", "vq2a_cc3m")
    maverics = "maverics_cc3m.json"
    examples = {
        "vq2a-cc3m/train.json": _maverics("vq2a-cc3m", ("0000a", "0000b"), "train"),
        "vq2a-cc3m/dev.json": _maverics("vq2a-cc3m", ("0000c",), "dev"),
        "vq2a-cc3m/maverics_cc3m.json": _maverics("maverics_cc3m", ("0000d",), "test"),
    }

    def image(self, name: str) -> tuple[tuple[str, ...], ...]:
        return ((name, f"{name}.jpg"),)


def training_task(annotations: str | Path, train_on: str, answers: str) -> Task:
    """The task that a model trains on which has no training set of its own.

    Args:
        train_on: its name, with ":LANGUAGE" behind it where the classes are answers in another language than English.
        answers: TRANSLATED or ENGLISH, of questions in another language.

    Raises: UsageError: there is no such training set.
    """
    from . import load_task

    name, _, language = train_on.partition(":")
    if name not in TRAIN_ON or language and name == "gqa":
        raise UsageError(
            f"train_on {train_on!r} is not {', '.join(TRAIN_ON)}, the last three with :LANGUAGE or without"
        )
    if name == "gqa":
        return load_task(name, annotations)
    return load_task(name, annotations, answers=answers, vocabulary=language or "en")
