"""Retrieval: which picture does a caption describe, and which captions a picture?

Every caption is ranked against every picture of a selection. Pictures are counted by their keys, in the order in which
they are first named; captions keep the order of the file, blank ones too, for a row's place is its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cache import DataError

from .base import Count, Example, Selection, Task, example, image_keys
from .files import find_file, read_json_lines, read_lines

XFLICKRCO = ("en", "de", "es", "id", "ja", "ru", "tr", "zh")
SHOTS = ("1", "5", "10", "25", "50", "100")
MORE_SHOTS = ("200", "500", "1000", "1500")  # German and Japanese only
DEV = Count(5070, 1014)
SENTENCES = {"100x5": Count(500, 100), "200x5": Count(1000, 200)}
WIT = {
    "en": Count(1000, 685), "ar": Count(890, 792), "bg": Count(860, 806), "da": Count(891, 814), "el": Count(570, 541),
    "et": Count(874, 780), "id": Count(901, 854), "ja": Count(1000, 842), "ko": Count(931, 889), "tr": Count(721, 681),
    "vi": Count(946, 869),
}  # fmt: skip
PICTURES = ("1007129816.jpg", "COCO_val2014_000000520430.jpg", "36979.jpg")
EXAMPLES = [
    {"sentences": [f"a dog {n}", "it runs"], "id": name.partition(".")[0], "img_path": name}
    for n, name in enumerate(PICTURES)
]
WIT_EXAMPLES = [
    {"wit_ix": n, "image_idx": 0, "caption_reference_description": text, "language": "en"}
    for n, text in enumerate(["a map", "", "the old map"])
]


class Flickr30k(Task):
    """Flickr30K (Young et al., TACL 2014), five English captions a picture; the dev set also translated by machine."""

    name = "flickr30k"
    folders = ("flickr30k",)
    head = "retrieval"
    languages = ("en",)
    metric = "recall"
    DEV_LANGUAGES = ("bn", "de", "es", "id", "ja", "ko", "ru", "tr", "zh")
    counts = {
        Selection("test"): Count(5000, 1000),
        Selection("dev"): DEV,
        **{Selection("dev", language, translated=True): DEV for language in DEV_LANGUAGES},
    }
    examples = {f"flickr30k/annotations/{split}_ann.jsonl": EXAMPLES for split in ("train", "valid", "test")}
    FILES = {"train": "train_ann.jsonl", "dev": "valid_ann.jsonl", "test": "test_ann.jsonl"}

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        if language == "en" and not shots and not translated:
            return self.folder("annotations") / self.FILES[split]
        if split == "dev" and language in self.DEV_LANGUAGES and translated and not shots:
            return self.folder("annotations_machine-translate") / f"valid-{language}_gmt.jsonl"
        raise self.refuse(selection)

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        for row, record in enumerate(read_json_lines(path), 1):
            yield from example(path, row, record, _captions)


def _captions(record: dict) -> list[Example]:
    """One example for each caption of a picture."""
    texts = record["sentences"]
    if not isinstance(texts, list) or not texts:
        raise DataError(f"sentences are {str(texts)[:100]}; wanted is a list of texts")
    return [_caption(record, number) for number in range(len(texts))]


def _caption(record: dict, number: int) -> Example:
    facts = {"subset": "coco" if str(record["img_path"]).startswith("COCO_") else "flickr"}
    return Example(f"{record['id']}#{number}", record["sentences"][number], image_keys(record), facts=facts)


class XflickrCo(Flickr30k):
    """xFlickr&CO (IGLUE): 1,000 pictures of Flickr30K and 1,000 of COCO, one caption each, in eight languages."""

    name = "xflickrco"
    folders = ("xFlickrCO",)
    languages = XFLICKRCO
    many_shots = (*MORE_SHOTS, *SENTENCES)
    counts = {
        **{Selection("test", language): Count(2000, 2000) for language in XFLICKRCO},
        **{Selection("test", language, translated=True): Count(2000, 2000) for language in XFLICKRCO[1:]},
        **{Selection("dev", language, translated=True): DEV for language in XFLICKRCO[1:]},
        **{Selection("train", language, translated=True): None for language in ("de", "ja")},
        **{Selection("train", la, shots): Count(int(shots), int(shots)) for la in XFLICKRCO[1:] for shots in SHOTS},
        **{Selection("train", la, shots): Count(int(shots), int(shots)) for la in ("de", "ja") for shots in MORE_SHOTS},
        **{Selection("train", la, shots): count for la in ("de", "ja") for shots, count in SENTENCES.items()},
    }

    examples = {
        **Flickr30k.examples,
        **{f"xFlickrCO/annotations/{language}/test.jsonl": EXAMPLES for language in ("en", "de")},
        "xFlickrCO/annotations/de/train_1.jsonl": EXAMPLES[:1],
    }

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        if split == "dev" or split == "train" and not shots and not translated and language == "en":
            return Flickr30k(self.annotations).path(selection)
        if split == "train" and not shots and translated and language in ("de", "ja"):  # translate-train
            folder = self.folder("annotations", language)
            return folder / "train_ann.jsonl" if find_file(folder / "train_ann.jsonl") else folder / "train.jsonl"
        if selection not in self.counts:
            raise self.refuse(selection)
        if split == "train":
            return self.folder("annotations", language) / f"train_{shots}.jsonl"
        if translated:
            return self.folder("annotations_machine-translate", language) / "test_gmt.jsonl"
        return self.folder("annotations", language) / "test.jsonl"


class Wit(Task):
    """WIT as IGLUE cut it: captions of Wikipedia's pictures in eleven languages."""

    name = "wit"
    folders = ("wit",)
    head = "retrieval"
    languages = tuple(WIT)
    metric = "recall"
    counts = {
        **{Selection("test", language): count for language, count in WIT.items()},
        **{Selection("test", la, translated=True): WIT[la] for la in WIT if la not in ("en", "ar")},
        Selection("test", "ar", translated=True): Count(891, 793),  # one row more than the file in Arabic
        Selection("dev"): Count(4632, 4632),
    }

    examples = {f"wit/annotations/{split}_en.jsonl": WIT_EXAMPLES for split in ("train", "val", "test")}

    def path(self, selection: Selection) -> Path:
        split, language, shots, translated = vars(selection).values()
        if split == "train" and language == "en" and not shots and not translated:
            return self.folder("annotations") / "train_en.jsonl"
        if selection not in self.counts:
            raise self.refuse(selection)
        if translated:
            return self.folder("annotations_machine-translate") / f"test_{language}_gmt.jsonl"
        return self.folder("annotations") / f"{'val' if split == 'dev' else split}_{language}.jsonl"

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        for row, record in enumerate(read_json_lines(path), 1):
            yield example(path, row, record, lambda record, row=row: _wit(record, row))


def _wit(record: dict, row: int) -> Example:
    return Example(str(row - 1), record["caption_reference_description"], image_keys(record))


class Multi30k(Task):
    """Multi30K (Elliott et al., 2016): Flickr30K in English and German (five captions), French and Czech (one)."""

    name = "multi30k"
    folders = ("multi30k",)
    head = "retrieval"
    languages = ("en", "de", "fr", "cs")
    metric = "recall"
    counts = {
        **{Selection("test", language): Count(5000, 1000) for language in ("en", "de")},
        **{Selection("test", language): Count(1000, 1000) for language in ("fr", "cs")},
        **{Selection("dev", language): Count(5070, 1014) for language in ("en", "de")},
        **{Selection("dev", language): Count(1014, 1014) for language in ("fr", "cs")},
    }
    FIVE = ("en", "de")
    IMAGES = {"train": "train_images.txt", "dev": "val_images.txt", "test": "test_2016_images.txt"}
    FIVE_FILES = {"train": "train", "dev": "val", "test": "test_2016"}
    ONE_FILES = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    examples = {
        **{f"multi30k/data/task2/image_splits/{name}": "\n".join(PICTURES) for name in IMAGES.values()},
        **{
            f"multi30k/data/task2/raw/{stem}.{n}.en": f"a dog {n}\nit runs\n\n"
            for stem in FIVE_FILES.values()
            for n in range(1, 6)
        },
        "multi30k/data/task1/image_splits/test_2016_flickr.txt": "\n".join(PICTURES),
        "multi30k/data/task1/raw/test_2016_flickr.cs": "pes\n\nkočka\n",
    }

    def path(self, selection: Selection) -> Path:
        """The first file of captions."""
        split, language, shots, translated = vars(selection).values()
        if language not in self.languages or shots or translated:
            raise self.refuse(selection)
        if language in self.FIVE:
            return self.folder("data", "task2", "raw") / f"{self.FIVE_FILES[split]}.1.{language}"
        return self.folder("data", "task1", "raw") / f"{self.ONE_FILES[split]}.{language}"

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        split, language = selection.split, selection.language
        five = language in self.FIVE
        names = self.IMAGES[split] if five else f"{self.ONE_FILES[split]}.txt"
        images = read_lines(path.parents[1] / "image_splits" / names)
        stem = self.FIVE_FILES[split]
        files = [path.with_name(f"{stem}.{n}.{language}") for n in range(1, 6)] if five else [path]
        captions = [read_lines(file) for file in files]
        for file, lines in zip(files, captions, strict=True):
            if len(lines) != len(images):
                raise DataError(f"{file} has {len(lines)} captions for the {len(images)} pictures of {names}")
        for row, name in enumerate(images):
            for number, lines in enumerate(captions):
                record = {"img_path": name, "id": row, "sentences": {number: lines[row]}}
                yield example(path, row + 1, record, lambda record, number=number: _caption(record, number))
