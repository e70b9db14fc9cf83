"""Captions about drawn scenes, true or false, of one picture or of two: tasks that a small encoder learns in minutes.

The annotations are the `scenes.jsonl` that `extractor/scenes.py` writes, in the folders train, dev and test, and the
pictures beside them; a picture's key begins with its folder, as extracting the folder above gives it. Captions are made
from what was drawn, always a true and a false one together, of which neither is of words that are more frequent in true
ones. So neither the text nor the picture alone tells which is which.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise, product
from pathlib import Path
from typing import Any

from cache import DataError

from .base import SPLITS, Example, Selection, Task, example
from .files import read_json_lines

LABELS = ("False", "True")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
RELATIONS = {"left_of": ("left of", "right of"), "above": ("above", "below")}  # what a is of b, and b of a
MOST = {"thing": 4, "colour": 2, "number": 1, "place": 1, "side": 4, "both": 2}  # of each kind and picture
EXAMPLES = [
    {
        "image": f"{n:06d}.jpg",
        "objects": [{"id": i, "class": name, "attributes": [color]} for i, (color, name) in enumerate(things)],
        "relations": [[0, "left_of", 1], [1, "above", 0], [1, "in_front_of", 0]],
    }
    for n, things in enumerate(
        [
            (("red", "star"), ("blue", "ring")),
            (("red", "cross"), ("orange", "arrow"), ("red", "arrow")),
            (("black", "heart"), ("white", "ring")),
        ]
    )
]

Statement = tuple[str, tuple[str, ...], tuple[str, ...]]  # kind, true captions, as many false ones
Words = Sequence[Sequence[str]]  # the classes that there are, and the things by colour


@dataclass(frozen=True)
class Scene:
    """What was drawn: the colour and the class of each thing, and (thing, relation, thing) by their places."""

    image: str
    colors: tuple[str, ...]
    classes: tuple[str, ...]
    relations: tuple[tuple[int, str, int], ...]

    @classmethod
    def of(cls, record: dict[str, Any]) -> Scene:
        """Raises: DataError, KeyError, TypeError: the row is not laid out as it should be."""
        objects = record["objects"]
        numbers = range(len(objects))
        if [one["id"] for one in objects] != list(numbers) or not 0 < len(objects) < len(NUMBERS):
            raise DataError(f"it has not one to {len(NUMBERS) - 1} objects, numbered from 0")
        relations = tuple((a, str(relation), b) for a, relation, b in record["relations"])
        if any(a not in numbers or b not in numbers for a, _, b in relations):
            raise DataError("a relation is of objects that are not there")
        colors, classes = (one["attributes"][0] for one in objects), (one["class"] for one in objects)
        return cls(str(record["image"]), tuple(map(str, colors)), tuple(map(str, classes)), relations)

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """(colour, class) of what is there."""
        return set(zip(self.colors, self.classes, strict=True))

    @property
    def things(self) -> tuple[str, ...]:
        return tuple(f"{color} thing" for color in self.colors)


class Scenes(Task):
    """Is a caption true of a picture?"""

    name = "scenes"
    folders = ("scenes",)
    head = "vsr"
    languages = ("en",)
    max_tokens = 24
    labels = LABELS
    counts = {Selection(split): None for split in SPLITS}
    examples = {f"scenes/{split}/scenes.jsonl": EXAMPLES for split in SPLITS}

    def path(self, selection: Selection) -> Path:
        if selection not in self.counts:
            raise self.refuse(selection)
        return self.folder(selection.split) / "scenes.jsonl"

    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        scenes = [example(path, row, record, Scene.of) for row, record in enumerate(read_json_lines(path), 1)]
        words = [sorted({word for one in scenes for word in getattr(one, part)}) for part in ("classes", "things")]
        yield from self.captions(scenes, words, selection.split)

    def captions(self, scenes: Sequence[Scene], words: Words, split: str) -> Iterator[Example]:
        for scene in scenes:
            yield from _captions((scene,), split, _of_one(scene, words))


class ScenePairs(Scenes):
    """Is a caption true of a picture and the one that follows it?"""

    name = "scene-pairs"
    head = "nlvr2"

    def captions(self, scenes: Sequence[Scene], words: Words, split: str) -> Iterator[Example]:
        for pair in pairwise(scenes):
            yield from _captions(pair, split, _of_two(*pair))


def _captions(scenes: Sequence[Scene], split: str, statements: Iterable[Statement]) -> list[Example]:
    """At most MOST statements of each kind, chosen by the names of the pictures alone, no caption twice."""
    stem = "+".join(scene.image.rpartition(".")[0] for scene in scenes)
    images = tuple((f"{split}/{scene.image}",) for scene in scenes)
    shuffled = sorted(statements)
    random.Random(f"{split}/{stem}").shuffle(shuffled)
    said: dict[str, Example] = {}
    left = dict(MOST)
    for kind, *texts in shuffled:
        if left[kind] and said.keys().isdisjoint(chain(*texts)):
            left[kind] -= 1
            for answer, those in zip(LABELS[::-1], texts, strict=True):
                for text in those:
                    labels = {LABELS.index(answer): 1.0}
                    said[text] = Example(f"{stem}-{len(said)}", text, images, labels, answer, {"kind": kind})
    return list(said.values())


def _of_one(scene: Scene, words: Words) -> Iterator[Statement]:
    """All that can be said of one picture: what is there, in which colour, how often, and where."""
    for here, known in zip((scene.classes, scene.things), words, strict=True):
        for word, other in product(set(here), set(known) - set(here)):
            yield "thing", (_a(word),), (_a(other),)
    for (color, name), (other, another) in combinations(sorted(scene.pairs), 2):
        if scene.pairs.isdisjoint({(color, another), (other, name)}):
            true = _a(f"{color} {name}"), _a(f"{other} {another}")
            yield "colour", true, (_a(f"{color} {another}"), _a(f"{other} {name}"))
    for here in (scene.classes, scene.things):
        for (word, count), (other, another) in combinations(sorted(Counter(here).items()), 2):
            if count != another:
                true = _exactly(count, word), _exactly(another, other)
                yield "number", true, (_exactly(another, word), _exactly(count, other))
    for subject, relation, other in scene.relations:
        a, b = scene.classes[subject], scene.classes[other]
        if relation in RELATIONS and scene.classes.count(a) == scene.classes.count(b) == 1:
            here, there = RELATIONS[relation]
            yield "place", (f"{_a(a)} {here} {_a(b)}",), (f"{_a(b)} {here} {_a(a)}",)
            yield "place", (f"{_a(b)} {there} {_a(a)}",), (f"{_a(a)} {there} {_a(b)}",)


def _of_two(left: Scene, right: Scene) -> Iterator[Statement]:
    """All that can be said of two pictures: in which of them something is, or that it is in both."""
    for color, name in left.pairs ^ right.pairs:
        sides = [f"{_a(f'{color} {name}')} on the {side}" for side in ("left", "right")]
        true, false = sides if (color, name) in left.pairs else sides[::-1]
        yield "side", (true,), (false,)
    for ours, theirs in ((set(left.classes), set(right.classes)), (set(left.things), set(right.things))):
        for words in product(ours & theirs, ours ^ theirs):
            true, false = (f"{_a(word)} in both" for word in words)
            yield "both", (true,), (false,)


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _exactly(count: int, words: str) -> str:
    """"exactly one star", "exactly two crosses"."""
    return f"exactly {NUMBERS[count]} {words}{'' if count == 1 else 'es' if words.endswith('s') else 's'}"
