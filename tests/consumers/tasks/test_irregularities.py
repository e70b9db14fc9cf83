"""What is odd in the published annotation files, where no test of a task or of the keys is about it already."""

import json
import os
import pickle
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from consumers.tasks import Selection, load_task

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "data"


def load(task, split, language, shots=None, translated=False):
    folder = DATA / "iglue/datasets"
    if not folder.is_dir():
        pytest.skip("the published annotations are not here")
    return load_task(task, folder).load(Selection(split, language, shots, translated))


def test_ids_that_are_numbers_become_texts():
    ids = [one.id for one in load("xflickrco", "test", "de")]
    assert ids[0] == "1007129816#0" and ids[1500] == "520430#0" and len(set(ids)) == 2000


@pytest.mark.parametrize(
    ("task", "language", "with_entities"),
    [("xvnli", "ar", 17), ("marvl", "zh", 16), ("xflickrco", "ja", 71), ("wit", "da", 145)],
)
def test_html_entities_of_machine_translations_stay(task, language, with_entities):
    """The published scores are of texts that have them."""
    texts = [one.text for one in load(task, "test", language, translated=True)]
    marks = ("&#39;", "&quot;", "&amp;", "&lt;", "&gt;")
    assert sum(any(mark in text for mark in marks) for text in texts) == with_entities


def test_white_space_and_marks_inside_captions_stay():
    danish = [one.text for one in load("wit", "test", "da")]
    assert [sum(mark in text for text in danish) for mark in ("\n", "\xa0")] == [30, 25]
    arabic = [one.text for one in load("wit", "test", "ar")]
    assert sum("\t" in text for text in arabic) == 1
    assert sum(any(mark in text for mark in "\u200b\u200c\u200d\u200e\u200f") for text in arabic) == 1
    english = [one.text for one in load("xflickrco", "test", "en")]
    assert sum(text != text.strip() for text in english) == 108


def test_pictures_with_decomposed_names_are_looked_for_in_both_forms():
    turkish = load("marvl", "train", "tr", "10")
    paths = [form for one in turkish for forms in one.images for form in forms if "/images/" in form]
    decomposed = [path for path in paths if unicodedata.normalize("NFC", path) != path]
    assert decomposed and {unicodedata.normalize("NFC", path) for path in decomposed} <= set(paths)


def test_a_translation_has_a_row_that_its_original_lost():
    arabic, english = (load("wit", "test", "ar", translated=translated) for translated in (False, True))
    there = {one.images for one in arabic}
    assert (len(arabic), len(english)) == (890, 891)
    assert [(row, one.text) for row, one in enumerate(english) if one.images not in there] == [(780, ".")]


@pytest.mark.parametrize(("language", "repeated"), [("id", 0), ("sw", 4), ("ta", 2), ("tr", 0), ("zh", 0)])
def test_rows_that_are_there_twice_count_twice(language, repeated):
    rows = Counter((one.text, one.images) for one in load("marvl", "test", language))
    assert sum(count - 1 for count in rows.values()) == repeated


@pytest.mark.parametrize("language", ["id", "tr", "zh"])
def test_ids_of_few_shot_sets_are_those_of_other_test_rows(language):
    test = {one.id: one for one in load("marvl", "test", language)}
    train = load("marvl", "train", language, "10")
    assert all(one.id in test and one.text != test[one.id].text for one in train)
    assert not {one.images for one in train} & {one.images for one in test.values()}


def test_a_pickle_beside_a_file_is_never_read(tmp_path):
    folder = tmp_path / "xGQA/annotations/few_shot/de"
    folder.mkdir(parents=True)
    row = {"question": "was?", "answer": "dog", "imageId": "1"}
    (folder / "dev.json").write_text(json.dumps({"7": row}))
    (folder / "dev.pkl").write_bytes(pickle.dumps({"8": row}))
    gqa = tmp_path / "gqa/annotations"
    gqa.mkdir(parents=True)
    (gqa / "trainval_label2ans.json").write_text('["cat", "dog"]')
    (gqa / "trainval_label2ans.pkl").write_bytes(b"no pickle at all")
    (one,) = load_task("xgqa", tmp_path).load(Selection("dev", "de"))
    assert (one.id, one.text, one.labels) == ("7", "was?", {1: 1.0})
