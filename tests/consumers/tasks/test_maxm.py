import gzip
import json
import math
from dataclasses import replace

import pytest

import roivault
from cache import DataError, InputNotFound, UsageError
from consumers.predictions import score_examples
from consumers.tasks import Count, Selection, load_task
from consumers.tasks.maxm import EXAMPLES, LANGUAGES, prefix_of

from ...conftest import write_examples

ENGLISH, FRENCH = Selection("test"), Selection("test", "fr")
IDS = [pair["question_id"] for image in EXAMPLES for pair in image["qa_pairs"]]


@pytest.fixture
def annotations(tmp_path):
    write_examples(load_task("maxm", ".").examples, tmp_path)
    return tmp_path


def said(folder, *answers):
    path = folder / "said.json"
    path.write_text(json.dumps([{"question_id": i, "answer": a} for i, a in zip(IDS, answers, strict=True)]))
    return path


def test_a_question_has_all_its_answers_and_what_they_are_broken_down_by(annotations):
    examples = load_task("maxm", annotations).load(ENGLISH)
    assert [one.id for one in examples] == IDS and len({one.images for one in examples}) == 2
    assert examples[1].answers == ("a cup, plates", "Plates") and examples[1].references == ("a cup plates", "plates")
    assert [one.facts for one in examples] == [
        {"is_collection": "false", "prefix": "is"},
        {"is_collection": "true", "prefix": "what is"},
        {"is_collection": "false", "prefix": "how many"},
    ]
    assert [bool(one.labels) for one in examples] == [True, False, True], "of GQA's answers"
    assert load_task("maxm", annotations).load(FRENCH)[0].answered_in == "fr"


@pytest.mark.parametrize(
    "question, prefix",
    [("Is it red?", "is"), ("What is that", "what is"), ("What color is it?", "what color"), ("A dog?", "a"),
     ("Are they?", "are"), ("Why not?", "other"), ("what  Kind of", "what kind"), ("Isn't it?", "other"),
     ("", "other")],
)  # fmt: skip
def test_prefixes_are_whole_words_and_the_longest(question, prefix):
    assert prefix_of(question) == prefix


def test_predictions_are_scored_as_they_are_and_processed(annotations, tmp_path):
    task = load_task("maxm", annotations)
    scores = score_examples(task, task.gold(ENGLISH), said(tmp_path, " yes ", "plates.", "three"))
    assert scores["accuracy"] == pytest.approx(100 / 3) and scores["accuracy_processed"] == pytest.approx(200 / 3)
    assert scores["rouge_l"] == pytest.approx(200 / 3) and scores["n"] == 3 and scores["unit"] == "words"
    assert task.facts_of_scores(task.gold(Selection("test", "zh"))) == {"unit": "characters"}
    longer = math.exp(-((2 - 0) ** 2) / 72) / math.sqrt(3)  # "plates" of the reference "a cup plates"
    assert scores["cider"] == pytest.approx(100 * (2.5 + 2.5 * (longer + 1) / 2 + 0) / 3)
    assert scores["subsets"]["is_collection"]["true"]["accuracy_processed"] == 100
    assert scores["subsets"]["prefix"]["how many"] == {
        "accuracy": 0.0, "n": 1, "accuracy_processed": 0.0, "cider": 0.0, "rouge_l": 0.0,
    }  # fmt: skip


def test_chinese_is_compared_by_character(annotations, tmp_path):
    path = annotations / "maxm_v1_release/maxm_v1_zh.json"
    content = json.loads(path.read_text())
    pair = content["annotations"][0]["qa_pairs"][0]
    pair |= {"answers": ["白色的"], "processed_answers": ["白色 的"]}
    path.write_text(json.dumps(content))
    task = load_task("maxm", annotations)
    examples = task.gold(Selection("test", "zh"))[:1]
    scores = task.each_scores(examples, ["白色 的。"])
    assert scores["accuracy_processed"].tolist() == [100] and scores["rouge_l"].tolist() == [100]
    assert task.each_scores(examples, ["白的"])["rouge_l"][0] == pytest.approx(100 * 2.44 * 2 / 3 / (2 / 3 + 1.44))


def test_predictions_need_no_training_set(annotations, tmp_path, capsys):
    for file in annotations.glob("gqa/annotations/*"):
        file.unlink()
    packed = tmp_path / "said.json.gz"
    packed.write_bytes(gzip.compress(said(tmp_path, "yes", "Plates", "2").read_bytes()))
    line = ["evaluate", "--task", "maxm", "--annotations", annotations, "--language", "fr", "--predictions", packed]
    assert roivault.main([str(one) for one in [*line, "--json"]]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 100
    with pytest.raises(InputNotFound, match="trainval_label2ans.json"):
        _ = load_task("maxm", annotations).labels


def write_parquet(folder, name, language, pairs):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = [
        {**pair, "is_collection": str(pair["is_collection"]).lower() == "true", "image_id": image["image_id"],
         "image_url": image["image_url"], "image": {"bytes": b"jpeg", "path": None}, "image_locale": language,
         "image_captions": ["a table"], "language": language, "method": "TransVQ2A"}
        for image, pair in pairs
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / name)


PAIRS = [(image, pair) for image in EXAMPLES for pair in image["qa_pairs"]]


@pytest.mark.parametrize("layout", ["data/{}-00000-of-00001.parquet", "default/{}/0000.parquet", "{}.parquet"])
def test_parquet_files_hold_the_same_questions(tmp_path, annotations, layout):
    whole = load_task("maxm", annotations).load(FRENCH)
    again = tmp_path / "again_with_yesno"  # the name of a folder above says nothing about the files
    first = again / "maxm" / layout.format("fr")
    write_parquet(first.parent, first.name, "fr", PAIRS[1:])
    task = load_task("maxm", again)
    facts = {"method": "TransVQ2A", "image_locale": "fr"}
    expected = [replace(one, facts=one.facts | facts, labels={}) for one in whole]
    assert task.load(FRENCH) == expected[1:]
    assert task.published(FRENCH) == Count(264, None)
    rest = again / "maxm" / layout.format("fr_yesno")
    write_parquet(rest.parent, rest.name, "fr", PAIRS[:1])
    assert task.load(FRENCH) == [*expected[1:], expected[0]] and task.published(FRENCH) == Count(293, None)
    first.write_bytes(b"PAR1 and nothing behind it")
    with pytest.raises(DataError, match="is damaged, or no parquet file"):
        task.load(FRENCH)


def test_its_figures_are_shown_with_and_without_english(annotations, capsys):
    assert roivault.main(["tasks", "stats", "maxm", str(annotations)]) == 0
    assert "how many" in capsys.readouterr().out
    (annotations / "maxm_v1_release/maxm_v1_en.json").unlink()
    assert roivault.main(["tasks", "stats", "maxm", str(annotations)]) == 0
    said = capsys.readouterr().out
    assert "how many" not in said and "answers by language" in said


def test_published_files_have_the_rows_of_the_paper(annotations, capsys):
    task = load_task("maxm", annotations)
    assert sum(task.counts[Selection("test", language)].rows for language in LANGUAGES) == 2142
    assert roivault.main(["tasks", "check", "maxm", str(annotations), "--json"]) == 65
    rows = {row["set"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["zh test"]["detail"] == "published are 307 rows" and rows["zh test"]["pictures"] == 2
    assert rows["th test"]["state"] == "absent"
    assert roivault.main(["tasks", "stats", "maxm", str(annotations), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sets = {row["set"]: row for row in found["sets"]}
    assert found["more"]["answers by language"][0] == {
        "language": "en", "questions": 3, "collections": 1, "answers of a question": 1.7, "most": 2,
    }  # fmt: skip
    prefixes = found["more"]["English questions by how they begin"]
    assert {"prefix": "how many", "percent": 33.3, "published": 15.1} in prefixes
    assert sum(row["published"] for row in prefixes) == pytest.approx(100, abs=0.3)
    assert sets["en test"]["unlabelled"] == 1 and sets["en train"]["rows"] == 2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"answers": []}, "has .* for answers; wanted are texts"),
        ({"answers": "yes"}, "wanted are texts"),
        ({"processed_answers": [1]}, "for processed_answers"),
        ({"is_collection": "maybe"}, "is_collection is 'maybe'"),
        ({"question": None, "question_id": None}, None),
    ],
)
def test_rows_that_make_no_sense_are_told(annotations, change, message):
    path = annotations / "maxm_v1_release/maxm_v1_en.json"
    content = json.loads(path.read_text())
    pair = content["annotations"][1]["qa_pairs"][0]
    pair.update(change) if message else pair.pop("question")
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"maxm_v1_en.json, row 2: .*{message or 'question'}"):
        load_task("maxm", annotations).load(ENGLISH)


def test_a_file_of_another_layout_is_told(annotations):
    path = annotations / "maxm_v1_release/maxm_v1_en.json"
    path.write_text("[]")
    with pytest.raises(DataError, match="not a JSON object with a list of annotations"):
        load_task("maxm", annotations).load(ENGLISH)


def test_it_is_translated_there_and_back(annotations, tmp_path):
    rows = [{"source": "fr", "target": "en", "text": pair["question"], "translation": f"Who? {n}"}
            for n, (_, pair) in enumerate(PAIRS)]  # fmt: skip
    rows.append({"source": "en", "target": "fr", "text": "yes", "translation": "oui"})
    table = tmp_path / "translations.jsonl"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = load_task("maxm", annotations, translate=str(table))
    selection = Selection("test", "fr", translated=True)
    examples = task.load(selection)
    assert [one.text for one in examples] == ["Who? 0", "Who? 1", "Who? 2"]
    assert examples[0].facts["prefix"] == "who" and examples[0].answered_in == "en"
    assert task.gold(selection)[0].answered_in == "fr"
    assert task.said_in_the_end(["yes"], selection) == ["oui"] and task.said_in_the_end(["yes"], FRENCH) == ["yes"]
    assert [one.text for one in task.gold(selection)] == [pair["question"] for _, pair in PAIRS]
    assert task.load(FRENCH)[0].facts["prefix"] == "who", "as its translation begins"
    with pytest.raises(UsageError, match="say what translates it, --translate"):
        load_task("maxm", annotations).load(selection)


def test_the_training_set_is_chosen_with_its_answers(tmp_path, annotations):
    write_examples(load_task("vqa2", ".").examples, annotations)
    task = load_task("maxm", annotations, train_on="vqa2:fr")
    assert task.labels == ["un chien"]
    train = task.load(Selection("train", "fr"))
    assert [(one.labels, one.answered_in) for one in train] == [({0: 1.0}, "fr")] * 3
    for name, message in (("coco", "'coco' is not gqa"), ("gqa:fr", "with :LANGUAGE"), ("vqa2:xx", "no answers in")):
        with pytest.raises(UsageError, match=message):
            load_task("maxm", annotations, train_on=name)
