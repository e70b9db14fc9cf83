"""Crossmodal-3600 (Thapliyal et al., EMNLP 2022): 3,600 pictures of Open Images, described anew in 36 languages.

There is one file, and no training set. `xm3600` is retrieval: which picture a caption describes and which captions a
picture, where any caption of a picture is right. `xm3600-captions` is to write what a picture shows. Both train on
Flickr30K, in German and Japanese on its captions in xFlickr&CO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cache import DataError, UsageError

from ..caption_metrics import cider, rouge_l
from ..caption_tokens import tokens, unit_of
from .base import Count, Example, Selection, Task, example, image_keys
from .files import read_json_lines
from .retrieval import Flickr30k, XflickrCo

LANGUAGES = (
    "ar", "bn", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fil", "fr", "he", "hi", "hr", "hu", "id", "it", "ja",
    "ko", "mi", "nl", "no", "pl", "pt", "quz", "ro", "ru", "sv", "sw", "te", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip
IMAGES, CAPTIONS = 3600, 261_375
FULL = "full"
FIELD, TOKENIZED = "caption", "caption/tokenized/lowercase"


def _row(key: str, locale: str, captions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    cut = {la: [" ".join(tokens(one, la)) for one in texts] for la, texts in captions.items()}
    held = {la: {FIELD: texts, "caption/tokenized": cut[la], TOKENIZED: cut[la]} for la, texts in captions.items()}
    return {"image/key": key, "image/locale": locale, **held}


EXAMPLES = [
    _row("d89a4889331ce042", "cs", {
        "en": ["A classic car in a showroom.", "Cars in a row"], "de": ["Ein Auto"], "th": ["รถแข่งวินเทจ"]}),
    _row("0a1b2c3d4e5f6071", "th", {
        "en": ["A dog runs on the beach"], "de": ["Ein Hund rennt am Strand", "Hund"], "th": ["สุนัขวิ่ง"]}),
    _row("0a1b2c3d4e5f6072", "en", {"en": ["Two cups"], "de": ["Zwei Tassen"], "th": ["ถ้วยสองใบ"]}),
]  # fmt: skip


class Xm3600(Task):
    """Retrieval among the pictures of Crossmodal-3600.

    Args:
        candidates: number of pictures, the first by their keys, and their captions, so that encoders that look at each
            pair end in time; "full" or None for all.
    """

    name = "xm3600"
    folders = ("xm3600", "crossmodal3600", "crossmodal-3600")
    head = "retrieval"
    metric = "recall"
    languages = LANGUAGES
    counts = {Selection("test", language): None for language in LANGUAGES}
    examples = {"xm3600/captions.jsonl": EXAMPLES, **Flickr30k.examples}

    def __init__(self, annotations: str | Path, candidates: str | int | None = None):
        super().__init__(annotations)
        if candidates not in (None, FULL) and not (str(candidates).isdecimal() and int(candidates) > 1):
            raise UsageError(f"--candidates {candidates!r} is neither a number of pictures above 1 nor {FULL!r}")
        self.candidates = None if candidates in (None, FULL) else int(candidates)

    def path(self, selection: Selection) -> Path:
        if selection.split != "test":
            return self._training(selection).path(selection)
        if selection not in self.counts:
            raise self.refuse(selection)
        return self.folder() / "captions.jsonl"

    def _training(self, selection: Selection) -> Task:
        """What it trains on: rows of Flickr30K, translated ones and those of few shots of xFlickr&CO."""
        other = XflickrCo if selection.translated or selection.shots else Flickr30k
        return other(self.annotations)

    def is_there(self, selection: Selection) -> bool:
        if selection.split != "test" or not super().is_there(selection):
            return super().is_there(selection)
        first = next(iter(read_json_lines(self.path(selection))), None)
        return first is None or selection.language in first  # that it is empty is for `load` to tell

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        if selection.split != "test":
            yield from self._training(selection).read(path, selection)
            return
        chosen = self._candidates(path)
        for row, record in enumerate(read_json_lines(path), 1):
            if chosen is None or record["image/key"] in chosen:
                yield from example(path, row, record, partial(self._examples, selection.language))

    def _candidates(self, path: Path) -> frozenset[str] | None:
        """The keys of the pictures that are ranked; None for all."""
        if self.candidates is None:
            return None
        keys = [example(path, row, one, _key) for row, one in enumerate(read_json_lines(path), 1)]
        return frozenset(sorted(keys)[: self.candidates])

    def _examples(self, language: str, record: Mapping[str, Any]) -> list[Example]:
        key, captions = _key(record), _texts(record, language, FIELD)
        images = image_keys({"image/key": key})
        return [Example(f"{key}#{n}", text, images, answered_in=language) for n, text in enumerate(captions)]

    def facts_of_scores(self, examples: Sequence[Example]) -> dict[str, str]:
        return {} if self.candidates is None else {"candidates": str(self.candidates)}

    def notes(self) -> list[str]:
        if self.candidates is None:
            return []
        return [f"ranked are {self.candidates:,} pictures at most, the first by their keys, and their captions"]

    def more_stats(self) -> dict[str, list[dict[str, Any]]]:
        """Captions over all languages, beside the published number."""
        sets = [one for one in self.counts if self.is_there(one)]
        found = [Xm3600(self.annotations).load(one) for one in sets]
        total = {
            "languages": len(sets), "published_languages": len(LANGUAGES),
            "pictures": len({one.images for examples in found for one in examples}), "published_pictures": IMAGES,
            "captions": sum(map(len, found)), "published_captions": CAPTIONS,
        }  # fmt: skip
        return {"captions in all languages together": [total]} if sets else {}


class Xm3600Captions(Xm3600):
    """Captions to write for the pictures of Crossmodal-3600.

    A caption is compared with all of its picture's, as they were published in words of lower case ("tokenized"). The
    same rules cut what was written and cut these once more, so that punctuation counts in neither. What cut Chinese,
    Japanese and Thai into words is not known: there both are compared by character, and scores say so ("unit").
    """

    name = "xm3600-captions"
    head = ""
    metric = "cider"
    counts = {Selection("test", language): Count(IMAGES, IMAGES) for language in LANGUAGES}

    def __init__(self, annotations: str | Path):
        super().__init__(annotations)

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        for one in super().read(path, selection):
            yield one if selection.split == "test" else _to_write(one, selection.language)

    def _examples(self, language: str, record: Mapping[str, Any]) -> list[Example]:
        key, captions = _key(record), _texts(record, language, FIELD)
        facts = {"locale": str(record["image/locale"])}
        return [
            Example(
                key, "", image_keys({"image/key": key}), answer=captions[0], facts=facts, answers=captions,
                references=_texts(record, language, TOKENIZED), answered_in=language,
            )
        ]  # fmt: skip

    def is_right(self, example: Example, said: str) -> bool:
        return said.strip() in {one.strip() for one in example.answers}

    def each_scores(self, examples: Sequence[Example], said: Sequence[str]) -> dict[str, np.ndarray]:
        cut = [tokens(text, one.answered_in) for text, one in zip(said, examples, strict=True)]
        right = [[tokens(text, one.answered_in) for text in one.references] for one in examples]
        return {"cider": 100 * cider(cut, right), "rouge_l": 100 * rouge_l(cut, right)}

    def facts_of_scores(self, examples: Sequence[Example]) -> dict[str, str]:
        return {"unit": unit_of(examples[0].answered_in)} if examples else {}


def _to_write(one: Example, language: str) -> Example:
    """A caption to train on: its picture is what is read, and its text what is to be written."""
    return Example(one.id, "", one.images, answer=one.text.strip(), answers=(one.text,), answered_in=language)


def _key(record: Mapping[str, Any]) -> str:
    key = record["image/key"]
    if not isinstance(key, str) or not key:
        raise DataError(f"image/key is {key!r}; wanted is the id of a picture")
    return key


def _texts(record: Mapping[str, Any], language: str, name: str) -> tuple[str, ...]:
    if language not in record:
        raise DataError(f"it has no captions in {language!r}")
    found = record[language][name]
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise DataError(f"{name} in {language!r} is {str(found)[:100]}; wanted are texts")
    return tuple(found)
