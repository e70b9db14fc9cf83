"""Captions of drawn scenes: what they say is so, and neither words nor pictures alone tell which are true."""

import json
from collections import Counter

import numpy as np
import pytest

from cache import DataError, UsageError
from consumers.tasks import Selection, load_task

COLORS, CLASSES = ("red", "blue", "black", "orange"), ("star", "ring", "cross", "arrow")


def drawn(count):
    """Rows of scenes.jsonl, some of whose things are hidden."""
    rng = np.random.default_rng(0)
    for n in range(count):
        things = [(rng.choice(COLORS), rng.choice(CLASSES)) for _ in range(rng.integers(3, 6))]
        shares = rng.choice([0.5, 0.75, 1.0], len(things))
        objects = [
            {"class": name, "attributes": [color, "plain"], "visible": share}
            for (color, name), share in zip(things, shares, strict=True)
        ]
        yield {"image": f"{n:06d}.jpg", "objects": objects}


def scenes(folder, rows, name="scenes", split="train"):
    path = folder / split / "scenes.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task(name, folder)


def there(words, row, least=0.0):
    """Whether something of that colour or class, or both, is in a picture."""
    for one in row["objects"]:
        if all(word in ("thing", one["attributes"][0], one["class"]) for word in words) and one["visible"] >= least:
            return True
    return False


@pytest.mark.parametrize("name", ["scenes", "scene-pairs"])
def test_captions_are_true_where_they_say_so(tmp_path, name):
    rows = list(drawn(60))
    by_image = {f"train/{row['image']}": row for row in rows}
    found = scenes(tmp_path, rows, name).load(Selection("train"))
    for one in found:
        _, *thing = one.text.partition(" on ")[0].split()
        pictures = [by_image[keys[0]] for keys in one.images]
        pictures = {"left": pictures[:1], "right": pictures[1:]}.get(one.text.split()[-1], pictures)
        if one.answer == "True":
            assert all(there(thing, row, least=0.75) for row in pictures), one
        else:
            assert not all(there(thing, row) for row in pictures), one
    kinds = {"scenes": {"class", "colour"}, "scene-pairs": {"side", "both"}}
    assert {one.facts["kind"] for one in found} == kinds[name]
    assert len({one.images for one in found}) > 50, "what is all hidden is not spoken of"


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
        ({"objects": []}, "row 1: nothing is drawn there"),
        ({"objects": [{"class": "star", "visible": 1}]}, "row 1: KeyError 'attributes'"),
        ({"objects": [{"class": "star", "attributes": ["red"], "visible": "no"}]}, "row 1: TypeError"),
        ({"objects": 7}, "row 1: TypeError"),
    ],
)
def test_rows_that_are_no_scenes_are_named(tmp_path, changes, message):
    (row,) = drawn(1)
    with pytest.raises(DataError, match=message):
        scenes(tmp_path, [row | changes]).load(Selection("train"))


def test_there_is_english_only(tmp_path):
    with pytest.raises(UsageError, match="scenes has no de test; its test sets are en$"):
        scenes(tmp_path, drawn(1)).load(Selection("test", "de"))
