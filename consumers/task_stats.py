"""What the sets of a task are like, beside what was published of them (IGLUE, Bugliarello et al., ICML 2022)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from .metrics import percent
from .tasks import Example, Selection, Task

# Table 1, as printed: pictures and rows of a split, those of test sets over all languages
PUBLISHED_SPLITS = {
    "xvnli": {"train": ("30K", "541K"), "dev": ("1K", "18K"), "test": ("357", "1.1K")},
    "gqa": {"train": ("72K", "943K"), "dev": ("10K", "132K")},
    "xgqa": {"train": ("72K", "943K"), "test": ("300", "9.6K")},
    "nlvr2": {"train": ("87K", "86K"), "dev": ("7K", "8K")},
    "marvl": {"train": ("87K", "86K"), "dev": ("7K", "8K"), "test": ("4.9K", "5.7K")},
    "flickr30k": {"train": ("29K", "145K"), "dev": ("1K", "5K")},
    "xflickrco": {"train": ("29K", "145K"), "dev": ("1K", "5K"), "test": ("2K", "2K")},
    "wit": {"train": ("469K", "500K"), "dev": ("4.6K", "4.6K"), "test": ("6.2K", "9.6K")},
}
PUBLISHED_SHOTS = {  # table 6: shots -> pictures and rows of a few-shot set, in every language that has it
    "xvnli": {"1": (1, 3), "5": (5, 18), "10": (10, 39), "20": (20, 75), "25": (25, 90), "48": (48, 168)},
    "xgqa": {"1": (1, 27), "5": (5, 155), "10": (10, 317), "20": (20, 594), "25": (25, 704), "48": (48, 1490)},
    "marvl": {"1": (8, 4), "2": (16, 8), "4": (32, 16), "10": (80, 40), "10x2": (80, 80)},
    "xflickrco": {shots: (int(shots), int(shots)) for shots in ("1", "5", "10", "25", "50", "100")},
}
PUBLISHED_SINGLE = {  # table 7: percent of WIT's test pictures that have one caption only
    "en": 70.9, "ar": 91.2, "bg": 94.9, "da": 93.0, "el": 97.2, "et": 93.6, "id": 96.0, "ja": 90.8, "ko": 95.8,
    "tr": 95.6, "vi": 93.7,
}  # fmt: skip
MOST_LABELS = 10  # that are told of a set, the most frequent ones


def task_stats(task: Task) -> dict[str, Any]:
    """Facts of the sets that are on the disk.

    Returns: {"sets": one row a set, "splits": one row a split over all its languages, where table 1 has a figure of it,
        "shots": one row for each number of shots of table 6, with the counts of all languages, "shared_pictures":
        {language: {language: pictures in the test sets of both}}, where they differ, "more": what `Task.more_stats`
        tells}.

    Raises: as `Task.load`.
    """
    selections = dict.fromkeys([*task.counts, Selection("train"), Selection("dev")])
    there = {one: task.load(one) for one in selections if task.is_there(one)}
    pictures = {one: _pictures(examples) for one, examples in there.items()}
    tests = {one.language: found for one, found in pictures.items() if one.split == "test" and not one.translated}
    rows = [_set(task, one, examples, tests.get(one.language, set())) for one, examples in there.items()]
    return {
        "sets": rows, "splits": list(_splits(task, there, pictures)), "shots": list(_shots(task, there, pictures)),
        "shared_pictures": _shared(tests), "more": task.more_stats() if there else {},
    }  # fmt: skip


def _pictures(examples: Sequence[Example]) -> set[str]:
    return {keys[0] for example in examples for keys in example.images}


def _set(task: Task, selection: Selection, examples: Sequence[Example], tested: set[str]) -> dict[str, Any]:
    pictures, published = _pictures(examples), task.counts.get(selection)
    texts = [text for one in examples for text in ([one.text] if task.head else one.answers)]
    row: dict[str, Any] = {
        "set": str(selection),
        "rows": len(examples),
        "pictures": len(pictures),
        "published": published and {"rows": published.rows, "pictures": published.images},
        "blank": sum(not text.strip() for text in texts),
        "words": _lengths([len(text.split()) for text in texts]),
        "characters": _lengths([len(text) for text in texts]),
    }
    if selection.split != "test":
        row["pictures_in_test"] = len(pictures & tested)
    if task.metric == "accuracy":
        labels = Counter(example.answer for example in examples if example.answer)
        if labels:  # what always giving the most frequent answer gets right
            row["majority"] = percent(labels.most_common(1)[0][1], len(examples))
        row |= {"labels": dict(labels.most_common(MOST_LABELS)), "different_labels": len(labels)}
        row["unlabelled"] = sum(not example.labels for example in examples)
        return row
    captions: Counter[str] = Counter()
    for example in examples:
        captions[example.images[0][0]] += len(example.answers) or 1
    row["one_caption"] = 100 * (sum(count == 1 for count in captions.values()) / len(captions))
    if task.name == "wit" and selection.split == "test" and not selection.translated:
        row["published_one_caption"] = PUBLISHED_SINGLE[selection.language]
    return row


def _lengths(values: list[int]) -> dict[str, float]:
    values.sort()
    return {"mean": sum(values) / len(values), "median": values[len(values) // 2], "most": values[-1]}


def _splits(task: Task, there: Mapping[Selection, Sequence[Example]], pictures: Mapping[Selection, set[str]]) -> Any:
    """As table 1 counts: sets of the same pictures are one set in several languages; else rows are those of all
    languages together, and pictures those of all but English."""
    for split, (images, rows) in PUBLISHED_SPLITS.get(task.name, {}).items():
        sets = [one for one in there if one.split == split and not one.shots and not one.translated]
        sets = [one for one in sets if split == "test" or one.language == "en"]
        if not sets:
            continue
        same = all(pictures[one] == pictures[sets[0]] for one in sets)
        counted = sets[:1] if same else sets
        abroad = [one for one in sets if one.language != "en"] or sets
        yield {
            "split": split,
            "pictures": len(set().union(*(pictures[one] for one in abroad))),
            "published_pictures": images,
            "rows": sum(len(there[one]) for one in counted),
            "published_rows": rows,
        }


def _shots(task: Task, there: Mapping[Selection, Sequence[Example]], pictures: Mapping[Selection, set[str]]) -> Any:
    for shots, (images, rows) in PUBLISHED_SHOTS.get(task.name, {}).items():
        if sets := [one for one in there if one.shots == shots]:
            yield {
                "shots": shots,
                "pictures": sorted({len(pictures[one]) for one in sets}),
                "published_pictures": images,
                "rows": sorted({len(there[one]) for one in sets}),
                "published_rows": rows,
            }


def _shared(tests: Mapping[str, set[str]]) -> dict[str, dict[str, int]]:
    if all(found == next(iter(tests.values())) for found in tests.values()):
        return {}
    shared: dict[str, dict[str, int]] = {language: {} for language in tests}
    for one, other in combinations(tests, 2):
        shared[one][other] = shared[other][one] = len(tests[one] & tests[other])
    return shared if any(count for row in shared.values() for count in row.values()) else {}
