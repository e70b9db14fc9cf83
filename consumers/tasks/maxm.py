"""MaXM (Changpinyo et al., Findings of EMNLP 2023): questions about pictures, asked and answered in seven languages.

There is no training set. Models train on another dataset, `train_on`, which also gives classifiers their answers; a
question none of whose answers is among these has no label, and they cannot get it right.

A prediction is right when it is any of the answers: as it is but for spaces around it ("accuracy"), or after both were
cut into words in lower case without punctuation ("accuracy_processed"). CIDEr and ROUGE-L compare those words; Thai
and Chinese are compared by character, since what cut the published answers into words is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from cache import DataError, InputNotFound, UsageError

from ..caption_metrics import cider, exact_match, rouge_l
from ..caption_tokens import tokens, unit_of
from .base import Count, Example, Selection, Task, example, image_keys
from .files import find_file, read_list, read_parquet
from .vqa import TRANSLATED, training_task

LANGUAGES = ("en", "fr", "hi", "iw", "ro", "th", "zh")
ROWS = dict(zip(LANGUAGES, (298, 293, 294, 315, 333, 302, 307), strict=True))  # of the paper, table 1 and section 4.4
PARQUET_ROWS = dict(zip(LANGUAGES, (257, 264, 260, 280, 284, 268, 277), strict=True))  # without the "yesno" files
PREFIXES = {  # of the English form of a question, with percent of the English questions, both of table 4
    "is": 22.8, "what is": 15.8, "how many": 15.1, "where": 6.7, "what kind": 6.0, "what are": 3.4, "who": 3.4,
    "are": 3.4, "what color": 3.4, "a": 3.0, "what type": 2.7, "what was": 1.0, "do": 0.7, "in": 0.7, "besides": 0.3,
    "does": 0.3,
}  # fmt: skip
OTHER = 11.4  # percent of the English questions
FACTS = ("method", "image_locale")  # of the parquet files
EXAMPLES = [
    {"image_id": "d89a4889331ce042", "image_url": "https://example.org/d89a4889331ce042.jpg", "qa_pairs": [
        {"question_id": "d89a4889331ce042_0", "question": "Is it red?", "answers": ["yes"],
         "processed_answers": ["yes"], "is_collection": False},
        {"question_id": "d89a4889331ce042_1", "question": "What is on the table?",
         "answers": ["a cup, plates", "Plates"], "processed_answers": ["a cup plates", "plates"],
         "is_collection": "true"}]},
    {"image_id": "0a1b2c3d4e5f6071", "image_url": "https://example.org/0a1b2c3d4e5f6071.jpg", "qa_pairs": [
        {"question_id": "0a1b2c3d4e5f6071_0", "question": "How many dogs are there?", "answers": ["2", "two"],
         "processed_answers": ["2", "two"], "is_collection": "false"}]},
]  # fmt: skip


def _gqa_row(number: int, image: str, question: str, answer: str) -> dict[str, Any]:
    return {"img_id": image, "label": {answer: 1.0}, "question_id": str(number), "sent": question}


class Maxm(Task):
    """MaXM, from the published JSON or the parquet files that were made of it.

    Args:
        train_on: "gqa", "vqa2", "vq2a-coco" or "vq2a-cc3m"; with ":fr" behind it, classes are its answers in French.
        translate: for the set-up translate-test, what `consumers.translation.Translator` takes: questions into
            English, and what was said of them back.
    """

    name = "maxm"
    folders = ("maxm_v1_release", "maxm", "MaXM")
    head = "gqa"
    languages = LANGUAGES
    max_tokens = 40
    counts = {Selection("test", language): Count(rows, None) for language, rows in ROWS.items()}
    examples = {
        **{
            f"maxm_v1_release/maxm_v1_{language}.json": {
                "dataset": "maxm", "version": "v1", "split": language, "annotations": EXAMPLES,
            }
            for language in ("en", "fr", "zh")
        },
        "gqa/annotations/train.json": [_gqa_row(1, "11", "Is it red?", "yes"), _gqa_row(2, "12", "And this?", "2")],
        "gqa/annotations/valid.json": [_gqa_row(3, "13", "Is it blue?", "no")],
        "gqa/annotations/trainval_label2ans.json": ["yes", "no", "2", "cup"],
    }  # fmt: skip

    def __init__(self, annotations: str | Path, train_on: str = "gqa", translate: str | None = None):
        super().__init__(annotations)
        self.training = training_task(annotations, train_on, TRANSLATED)
        self._translate = translate

    # -- what classifiers and training need

    @property
    def labels(self) -> Sequence[str]:
        """The answers of classifiers. Raises: InputNotFound, DataError."""
        return self.training.labels

    @cached_property
    def _classes(self) -> Mapping[str, int]:
        """Empty where the training set is not here: predictions are scored without it."""
        try:
            return {answer: number for number, answer in enumerate(self.labels)}
        except InputNotFound:
            return {}

    @cached_property
    def translator(self) -> Any:
        """Raises: UsageError, InputNotFound, DataError."""
        from ..translation import Translator

        if self._translate is None:
            raise UsageError(
                f"{self.name} is published untranslated: say what translates it, --translate FILE|MODULE:F"
            )
        return Translator(self._translate)

    # -- the files

    def path(self, selection: Selection) -> Path:
        if selection.split != "test":
            return self.training.path(selection)
        if selection.language not in LANGUAGES or selection.shots:
            raise self.refuse(selection)
        if selection.translated:
            _ = self.translator  # its absence is told before anything is read
        name = self.folder() / f"maxm_v1_{selection.language}.json"
        return next(iter(self._parquet(selection.language)), name) if find_file(name) is None else name

    def _parquet(self, language: str) -> list[Path]:
        """The files of a language, as `data/fr-00000-of-00001.parquet` or `fr/0000.parquet`; those of its questions
        that are answered by yes or no are apart, as `fr_yesno`, and come last."""
        folders = (self.folder(), self.folder() / "data", self.folder() / "default")
        forms = ("{}.parquet", "{}-*.parquet", "{}/*.parquet")
        kinds = (language, f"{language}_yesno")
        globs = [(folder, form.format(kind)) for kind in kinds for folder in folders for form in forms]
        return [path for folder, pattern in globs for path in sorted(folder.glob(pattern))]

    def published(self, selection: Selection) -> Count | None:
        if self.path(selection).suffix != ".parquet":
            return self.counts[selection]
        inside = (path.relative_to(self.folder()) for path in self._parquet(selection.language))
        whole = any("_yesno" in str(path) for path in inside)
        return Count((ROWS if whole else PARQUET_ROWS)[selection.language], None)

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        if selection.split != "test":
            yield from self.training.read(path, selection)
            return
        rows = list(self._rows(path, selection.language))
        english = self._in_english([row.text for row in rows], selection)
        for row, text in zip(rows, english, strict=True):
            if text is not None:
                row = replace(row, facts={**row.facts, "prefix": prefix_of(text)})
            yield replace(row, text=text, answered_in="en") if selection.translated else row

    def _in_english(self, texts: list[str], selection: Selection) -> Sequence[str | None]:
        if selection.language == "en":
            return texts
        if selection.translated or self._translate is not None:
            return self.translator(texts, selection.language, "en")
        return [None] * len(texts)

    def _rows(self, path: Path, language: str) -> Iterator[Example]:
        if path.suffix == ".parquet":
            for file in self._parquet(language):
                for row, record in enumerate(read_parquet(file, without=("image",)), 1):
                    yield example(file, row, record, partial(self._question, record, language))
            return
        for row, record in enumerate(read_list(path, "annotations"), 1):
            yield from example(path, row, record, partial(self._questions, language))

    def _questions(self, language: str, record: Mapping[str, Any]) -> list[Example]:
        return [self._question(record, language, pair) for pair in record["qa_pairs"]]

    def _question(self, image: Mapping[str, Any], language: str, pair: Mapping[str, Any]) -> Example:
        answers, processed = _texts(pair, "answers"), _texts(pair, "processed_answers")
        labels = {self._classes[one.strip()]: 1.0 for one in answers if one.strip() in self._classes}
        facts = {"is_collection": _boolean(pair["is_collection"])}
        facts |= {name: str(pair[name]) for name in FACTS if pair.get(name)}
        return Example(
            str(pair["question_id"]), str(pair["question"]), image_keys({"image_id": image["image_id"]}), labels,
            answers[0], facts, answers, processed, language,
        )  # fmt: skip

    def gold(self, selection: Selection) -> list[Example]:
        """Answers are in the language itself, whatever the questions were translated into."""
        untranslated = Selection(selection.split, selection.language)
        return self.load(untranslated)

    def more_stats(self) -> dict[str, list[dict[str, Any]]]:
        there = {one.language: self.load(one) for one in self.counts if self.is_there(one)}
        sets, prefixes = [], []
        for language, examples in there.items():
            counts = [len(one.answers) for one in examples]
            collections = sum(one.facts["is_collection"] == "true" for one in examples)
            answers = {"answers of a question": round(sum(counts) / len(counts), 1), "most": max(counts)}
            sets.append({"language": language, "questions": len(examples), "collections": collections, **answers})
        if english := there.get("en"):
            found = Counter(one.facts["prefix"] for one in english)
            prefixes = [
                {"prefix": name, "percent": round(100 * found[name] / len(english), 1), "published": published}
                for name, published in {**PREFIXES, "other": OTHER}.items()
            ]
        found = {"answers by language": sets, "English questions by how they begin": prefixes}
        return {title: rows for title, rows in found.items() if rows}

    # -- predictions

    def is_right(self, example: Example, said: str) -> bool:
        return bool(exact_match([said], [example.answers])[0])

    def each_scores(self, examples: Sequence[Example], said: Sequence[str]) -> dict[str, np.ndarray]:
        cut = [tokens(text, one.answered_in) for text, one in zip(said, examples, strict=True)]
        right = [[tokens(text, one.answered_in) for text in one.references] for one in examples]
        same = [own in its for own, its in zip(cut, right, strict=True)]
        return {
            "accuracy_processed": 100.0 * np.array(same, np.float64),
            "cider": 100 * cider(cut, right),
            "rouge_l": 100 * rouge_l(cut, right),
        }

    def facts_of_scores(self, examples: Sequence[Example]) -> dict[str, str]:
        return {"unit": unit_of(examples[0].answered_in)} if examples else {}

    def said_in_the_end(self, said: Sequence[str], selection: Selection) -> list[str]:
        return self.translator(said, "en", selection.language) if selection.translated else list(said)


def prefix_of(question: str) -> str:
    """Which of table 4's prefixes an English question begins with, the longest of them, or "other"."""
    words = [word.rstrip("?!.,") for word in question.lower().split()]
    found = [one for one in PREFIXES if words[: len(one.split())] == one.split()]
    return max(found, key=len, default="other")


def _texts(pair: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = pair[name]
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise DataError(f"question {pair['question_id']!r} has {str(found)[:100]} for {name}; wanted are texts")
    return tuple(found)


def _boolean(value: Any) -> str:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise DataError(f"is_collection is {value!r}; wanted is true or false")
    return text
