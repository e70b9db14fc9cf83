"""Captions of drawn scenes: what they say is so, and neither words nor pictures alone tell which are true."""

import json
from collections import Counter

import numpy as np
import pytest

from cache import DataError, UsageError
from consumers.tasks import Selection, load_task

COLORS, CLASSES = ("red", "blue", "black", "orange"), ("star", "ring", "cross", "arrow")


def drawn(count):
    """Rows of scenes.jsonl with things side by side."""
    rng = np.random.default_rng(0)
    for n in range(count):
        things = [(rng.choice(COLORS), rng.choice(CLASSES)) for _ in range(rng.integers(3, 6))]
        objects = [{"id": i, "class": name, "attributes": [color, "plain"]} for i, (color, name) in enumerate(things)]
        beside = [[i, "left_of", k] for i in range(len(things)) for k in range(i + 1, len(things))]
        yield {"image": f"{n:06d}.jpg", "objects": objects, "relations": beside}


def scenes(folder, rows, name="scenes", split="train"):
    path = folder / split / "scenes.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task(name, folder)


def holds(text, row):
    """Whether a caption is true of a picture, read anew from its words."""
    words = text.split()
    things = [(one["attributes"][0], one["class"]) for one in row["objects"]]
    names = [name for _, name in things]

    def matching(told):
        color, name = told if len(told) == 2 else (None, told[0])
        name = name.removesuffix("es") if name.endswith("sses") else name.removesuffix("s")
        name = "cross" if name == "cros" else name
        return [one for one in things if color in (None, one[0]) and name in ("thing", one[1])]

    if words[0] == "exactly":
        return len(matching(words[2:])) == ("one", "two", "three", "four", "five").index(words[1]) + 1
    if "of" in words:
        a, b = names.index(words[1]), names.index(words[5])
        return a < b if words[2] == "left" else a > b
    return bool(matching(words[1:]))


def test_captions_are_true_where_they_say_so(tmp_path):
    rows = list(drawn(60))
    by_image = {f"train/{row['image']}": row for row in rows}
    found = scenes(tmp_path, rows).load(Selection("train"))
    assert {one.facts["kind"] for one in found} == {"thing", "colour", "number", "place"}
    for one in found:
        assert holds(one.text, by_image[one.images[0][0]]) == (one.answer == "True"), one


def test_pairs_tell_which_picture_it_is(tmp_path):
    rows = list(drawn(30))
    found = scenes(tmp_path, rows, "scene-pairs").load(Selection("train"))
    by_image = {f"train/{row['image']}": row for row in rows}
    assert {one.facts["kind"] for one in found} == {"side", "both"} and len({one.images for one in found}) == 29
    for one in found:
        left, right = (by_image[keys[0]] for keys in one.images)
        thing = " ".join(one.text.split()[: -2 if one.facts["kind"] == "both" else -3])
        of = {"left": [left], "right": [right], "both": [left, right]}[one.text.split()[-1]]
        assert all(holds(thing, row) for row in of) == (one.answer == "True"), one


@pytest.mark.parametrize("name", ["scenes", "scene-pairs"])
def test_neither_pictures_nor_words_alone_tell(tmp_path, name):
    found = scenes(tmp_path, drawn(300), name).load(Selection("train"))
    for images in {one.images for one in found}:
        answers = Counter(one.answer for one in found if one.images == images)
        assert answers["True"] == answers["False"]
    for kind in {one.facts["kind"] for one in found}:
        own = [one for one in found if one.facts["kind"] == kind]
        words = {word for one in own for word in one.text.split()}
        for word in words:
            share = np.mean([one.answer == "True" for one in own if word in one.text.split()])
            count = sum(word in one.text.split() for one in own)
            assert abs(share - 0.5) < 2 / count**0.5, (kind, word, share, count)


def test_captions_are_the_same_every_time(tmp_path):
    rows = list(drawn(9))
    first = scenes(tmp_path / "a", rows).load(Selection("train"))
    again = scenes(tmp_path / "b", rows).load(Selection("train"))
    assert first == again and len({one.id for one in first}) == len(first)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objects": []}, "row 1: it has not one to 8 objects"),
        ({"objects": [{"id": 3, "class": "star", "attributes": ["red"]}]}, "numbered from 0"),
        ({"objects": [{"id": 0, "class": "star"}], "relations": []}, "row 1: KeyError 'attributes'"),
        ({"relations": [[0, "above", 77]]}, "a relation is of objects that are not there"),
        ({"relations": [[0, "above"]]}, "row 1: ValueError"),
        ({"relations": None}, "row 1: TypeError"),
    ],
)
def test_rows_that_are_no_scenes_are_named(tmp_path, changes, message):
    (row,) = drawn(1)
    with pytest.raises(DataError, match=message):
        scenes(tmp_path, [row | changes]).load(Selection("train"))


def test_there_is_english_only(tmp_path):
    with pytest.raises(UsageError, match="scenes has no de test; its test sets are en test"):
        scenes(tmp_path, drawn(1)).load(Selection("test", "de"))
