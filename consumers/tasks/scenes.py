"""Captions about drawn scenes, true or false, of one picture or of two: tasks that a small encoder learns in minutes.

The annotations are the `scenes.jsonl` that `extractor/scenes.py` writes, in the folders train, dev and test, and the
pictures beside them; a picture's key begins with its folder, as extracting the folder above gives it. Captions are made
from what was drawn, always a true and a false one together, of which neither is of words that are more frequent in true
ones. So neither the text nor the picture alone tells which is which.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise, product
from pathlib import Path
from typing import Any

from cache import DataError

from .base import SPLITS, Example, Selection, Task, example
from .files import read_json_lines

LABELS = ("False", "True")
MOST = {"class": 4, "colour": 3, "side": 4, "both": 2}  # statements of each kind about a picture
CLEAR = 0.75  # share of a thing that is to be seen
EXAMPLES = [
    {
        "image": f"{n:06d}.jpg",
        "objects": [{"class": name, "attributes": [color], "visible": 1.0} for color, name in things],
    }
    for n, things in enumerate(
        [
            (("red", "star"), ("blue", "ring")),
            (("red", "cross"), ("orange", "arrow"), ("red", "arrow")),
            (("black", "heart"), ("white", "ring")),
        ]
    )
]

Statement = tuple[str, str, str]  # kind, a true caption, a false one
Words = Sequence[Sequence[str]]  # the classes that there are, and the things by colour


@dataclass(frozen=True)
class Scene:
    """What was drawn: the colour and the class of each thing, and whether it is `clear`, that is hardly covered: true
    captions are of those, and false ones of nothing that is there."""

    image: str
    colors: tuple[str, ...]
    classes: tuple[str, ...]
    clear: tuple[bool, ...]

    @classmethod
    def of(cls, record: dict[str, Any]) -> Scene:
        """Raises: DataError, KeyError, TypeError: the row is not laid out as it should be."""
        objects = record["objects"]
        if not objects:
            raise DataError("nothing is drawn there")
        clear = tuple(one["visible"] >= CLEAR for one in objects)
        colors = tuple(str(one["attributes"][0]) for one in objects)
        classes = tuple(str(one["class"]) for one in objects)
        if not all((*colors, *classes)):
            raise DataError("a thing has no class or no colour")
        return cls(str(record["image"]), colors, classes, clear)

    @property
    def things(self) -> tuple[str, ...]:
        """What each thing is when only its colour is told."""
        return tuple(f"{color} thing" for color in self.colors)

    def clearly(self, parts: Sequence[Any]) -> set[Any]:
        """Those of the things that are to be seen clearly."""
        return set(compress(parts, self.clear))


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
        if left[kind] and said.keys().isdisjoint(texts):
            left[kind] -= 1
            for answer, text in zip(reversed(LABELS), texts, strict=True):
                labels = {LABELS.index(answer): 1.0}
                said[text] = Example(f"{stem}-{len(said)}", text, images, labels, answer, {"kind": kind})
    return list(said.values())


def _of_one(scene: Scene, words: Words) -> Iterator[Statement]:
    """All that can be said of one picture: what is there, and of which colour."""
    for kind, here, known in zip(("class", "colour"), (scene.classes, scene.things), words, strict=True):
        for word, other in product(scene.clearly(here), set(known) - set(here)):
            yield kind, _a(word), _a(other)


def _of_two(left: Scene, right: Scene) -> Iterator[Statement]:
    """All that can be said of two pictures: on which side something is, or that it is on both."""
    for here, there in ((left.classes, right.classes), (left.things, right.things)):
        ours, theirs = left.clearly(here) - set(there), right.clearly(there) - set(here)
        for word in ours | theirs:
            sides = [f"{_a(word)} on the {side}" for side in ("left", "right")]
            true, false = sides if word in ours else sides[::-1]
            yield "side", true, false
        for word, other in product(left.clearly(here) & right.clearly(there), ours | theirs):
            yield "both", f"{_a(word)} on both sides", f"{_a(other)} on both sides"


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"

