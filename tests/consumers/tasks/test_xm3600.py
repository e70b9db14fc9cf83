import json
import zipfile

import numpy as np
import pytest

import roivault
from cache import DataError, UsageError
from consumers.caption_metrics import cider
from consumers.predictions import score_examples
from consumers.tasks import Count, Selection, load_task
from consumers.tasks.xm3600 import CAPTIONS, EXAMPLES, LANGUAGES

from ...conftest import write_examples

TEST = Selection("test")


@pytest.fixture
def annotations(tmp_path):
    write_examples(load_task("xm3600", tmp_path).examples, tmp_path)
    return tmp_path


@pytest.fixture
def captions(annotations):
    return load_task("xm3600-captions", annotations)


def test_there_are_36_languages():
    assert len(LANGUAGES) == len(set(LANGUAGES)) == 36 and CAPTIONS == 261_375
    assert {"quz", "mi", "fil", "he", "no"} <= set(LANGUAGES) and "iw" not in LANGUAGES


def test_captions_keep_the_order_and_name_their_picture(annotations):
    examples = load_task("xm3600", annotations).load(TEST)
    assert [(one.id, one.text) for one in examples[:3]] == [
        ("d89a4889331ce042#0", "A classic car in a showroom."),
        ("d89a4889331ce042#1", "Cars in a row"),
        ("0a1b2c3d4e5f6071#0", "A dog runs on the beach"),
    ]
    assert examples[0].images[0][0] == "d89a4889331ce042" and "d89a4889331ce042.jpg" in examples[0].images[0]
    assert Count.of(examples) == Count(4, 3)
    assert Count.of(load_task("xm3600", annotations).load(Selection("test", "de"))) == Count(4, 3)


def test_candidates_are_the_first_by_their_keys_in_every_language(annotations):
    for language, captions in (("en", 2), ("de", 3), ("th", 2)):
        task = load_task("xm3600", annotations, candidates=2)
        examples = task.load(Selection("test", language))
        keys = [one.images[0][0] for one in examples]
        assert set(keys) == {"0a1b2c3d4e5f6071", "0a1b2c3d4e5f6072"} and len(keys) == captions
    assert task.notes() and not load_task("xm3600", annotations, candidates="full").notes()
    for wrong in ("some", "0", "1", "-3"):
        with pytest.raises(UsageError, match="--candidates"):
            load_task("xm3600", annotations, candidates=wrong)


@pytest.mark.parametrize("name", ["captions.zip", "captions.jsonl.zip"])
def test_the_archive_is_read_as_it_is_published(tmp_path, name):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in EXAMPLES)
    (tmp_path / "xm3600").mkdir()
    with zipfile.ZipFile(tmp_path / "xm3600" / name, "w") as archive:
        archive.writestr("captions.jsonl", text)
    task = load_task("xm3600", tmp_path)
    assert task.is_there(Selection("test", "th")) and not task.is_there(Selection("test", "fr"))
    assert [one.text for one in task.load(Selection("test", "th"))][0] == "รถแข่งวินเทจ"


def test_a_picture_is_one_row_to_write_about(captions):
    first = captions.load(TEST)[0]
    assert (first.id, first.text, first.answers) == (
        "d89a4889331ce042", "", ("A classic car in a showroom.", "Cars in a row"),
    )  # fmt: skip
    assert first.references == ("a classic car in a showroom", "cars in a row")
    assert (first.facts, first.answered_in) == ({"locale": "cs"}, "en")


def test_training_rows_have_a_caption_to_write(captions):
    rows = captions.load(Selection("train"))
    assert all(not one.text and one.answer for one in rows) and rows[0].answer == "a dog 0"
    assert [one.text for one in load_task("xm3600", captions.annotations).load(Selection("train"))][0] == "a dog 0"


def test_scores_are_cider_with_the_published_words(captions, tmp_path):
    examples = captions.load(TEST)
    said = ["a classic car in a showroom", "the dog runs on a beach", "cups"]
    file = tmp_path / "said.json"
    file.write_text(json.dumps([{"image_id": e.id, "caption": s} for e, s in zip(examples, said, strict=True)]))
    found = score_examples(captions, examples, file)
    right = [[reference.split() for reference in one.references] for one in examples]
    each = cider([text.split() for text in said], right)
    assert found["cider"] == pytest.approx(100 * each.mean()) and found["n"] == 3 and found["unit"] == "words"
    assert found["subsets"]["locale"]["cs"]["cider"] == pytest.approx(100 * each[0])
    assert "accuracy" not in found and "accuracy" not in found["subsets"]["locale"]["cs"]
    assert each[0] > 2.5 > each[2]


def test_punctuation_and_case_do_not_count(captions, tmp_path):
    examples = captions.load(Selection("test", "de"))
    scores = []
    for said in (
        ["ein auto", "ein hund rennt am strand", "zwei tassen"],
        ["Ein Auto!", "Ein Hund rennt, am Strand.", "Zwei Tassen"],
    ):
        (tmp_path / "f.json").write_text(
            json.dumps([{"id": e.id, "answer": s} for e, s in zip(examples, said, strict=True)])
        )
        scores.append(score_examples(captions, examples, tmp_path / "f.json"))
    assert scores[0] == scores[1] and scores[0]["rouge_l"] == 100


def test_languages_without_spaces_are_compared_by_character_and_say_so(captions, tmp_path):
    examples = captions.load(Selection("test", "th"))
    rows = [{"id": one.id, "prediction": one.answers[0]} for one in examples]
    (tmp_path / "f.json").write_text(json.dumps(rows))
    found = score_examples(captions, examples, tmp_path / "f.json")
    assert found["unit"] == "characters" and found["rouge_l"] == 100


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"en": {"caption": [], "caption/tokenized/lowercase": []}}, "row 1.*caption in 'en' is"),
        ({"en": {"caption": "a car"}}, "row 1.*wanted are texts"),
        ({"image/key": 7}, "row 1.*image/key is 7"),
    ],
)
def test_rows_that_make_no_sense_are_named(tmp_path, change, words):
    write_examples({"xm3600/captions.jsonl": [EXAMPLES[0] | change]}, tmp_path)
    with pytest.raises(DataError, match=words):
        load_task("xm3600", tmp_path).load(TEST)


def test_a_language_that_is_not_there_is_named(annotations):
    with pytest.raises(DataError, match="row 1.*no captions in 'fr'"):
        load_task("xm3600", annotations).load(Selection("test", "fr"))


def test_what_is_on_disk_is_told_beside_what_was_published(annotations, capsys):
    assert roivault.main(["tasks", "check", "xm3600-captions", str(annotations), "--json"]) == 65  # three pictures only
    rows = {row["set"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["en test"]["rows"] == 3 and "3,600 rows" in rows["en test"]["detail"]
    assert rows["fr test"]["state"] == "absent" and len(rows) == 36
    assert roivault.main(["tasks", "stats", "xm3600", str(annotations), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (total,) = found["more"]["captions in all languages together"]
    assert (total["captions"], total["published_captions"], total["pictures"]) == (11, CAPTIONS, 3)
    words = {row["set"]: row["words"]["mean"] for row in found["sets"]}
    assert words["en test"] == np.mean([6, 4, 6, 2])
    assert roivault.main(["tasks", "stats", "xm3600-captions", str(annotations), "--json"]) == 0
    captions = {row["set"]: row for row in json.loads(capsys.readouterr().out)["sets"]}["en test"]
    assert captions["rows"] == 3 and captions["words"]["mean"] == words["en test"], "of all captions of a picture"
    assert captions["one_caption"] == pytest.approx(100 * 2 / 3)
