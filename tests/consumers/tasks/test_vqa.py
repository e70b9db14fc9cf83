import json

import pytest

import roivault
from cache import DataError, InputNotFound, UsageError
from consumers.tasks import Selection, load_task
from consumers.tasks.vqa import LANGUAGES

from ...conftest import write_examples


@pytest.fixture
def folder(tmp_path):
    for name in ("vqa2", "vq2a-coco", "vq2a-cc3m"):
        write_examples(load_task(name, ".").examples, tmp_path)
    return tmp_path


def test_vqa_is_split_as_karpathy_splits_coco(folder):
    task = load_task("vqa2", folder)
    ids = {split: [one.id for one in task.load(Selection(split))] for split in ("train", "dev", "test")}
    assert ids == {"train": ["9000", "25000", "42000"], "dev": ["73000"], "test": ["74000"]}
    keys = [one.images[0][0] for one in task.load(Selection("train"))]
    assert keys == ["COCO_train2014_000000000009", "COCO_train2014_000000000025", "COCO_val2014_000000000042"]
    (folder / "vqa2/dataset_coco.json").unlink()
    with pytest.raises(InputNotFound, match="dataset_coco.json, Karpathy's split of COCO"):
        load_task("vqa2", folder).load(Selection("train"))


def test_an_answer_counts_by_how_many_gave_it(folder):
    path = folder / "vqa2/v2_mscoco_train2014_annotations.json"
    content = json.loads(path.read_text())
    content["annotations"][1] |= {
        "multiple_choice_answer": "dog",
        "answers": [{"answer": a} for a in ["dog"] * 3 + ["a dog"]],
    }
    content["annotations"].append({"question_id": 1, "multiple_choice_answer": "cat", "answers": []})
    path.write_text(json.dumps(content))
    task = load_task("vqa2", folder)
    assert task.labels == ["a dog", "dog"]
    found = {one.id: one.labels for one in task.load(Selection("train"))}
    assert found["9000"] == {0: 1.0, 1: pytest.approx(0.9)} and found["25000"] == {0: 0.3, 1: pytest.approx(0.9)}


def test_translations_are_joined_by_question(folder):
    task = load_task("vqa2", folder)
    one = task.load(Selection("train", "fr"))[0]
    assert (one.text, one.answer, one.answered_in) == ("Que montre l'image 9 ?", "un chien", "fr")
    english = load_task("vqa2", folder, answers="english").load(Selection("train", "fr"))[0]
    assert (english.text, english.answer, english.answered_in) == (one.text, "a dog", "en")
    assert english.labels == {0: 1.0}
    path = folder / "vqa2/translations/train-fr.jsonl"
    path.write_text(path.read_text().split("\n")[0])
    with pytest.raises(DataError, match="train-fr.jsonl lacks a translation of question 25000"):
        task.load(Selection("train", "fr"))
    path.write_text('{"question_id": 9000, "question": "?"}\n')
    with pytest.raises(DataError, match="train-fr.jsonl, row 1: KeyError 'answer'"):
        task.load(Selection("train", "fr"))


def test_vq2a_is_read_in_the_layout_of_maverics(folder):
    coco, cc3m = load_task("vq2a-coco", folder), load_task("vq2a-cc3m", folder)
    one = coco.load(Selection("train"))[0]
    assert (one.text, one.answer, one.labels) == ("what color is the bus?", "red", {0: 1.0})
    assert {"000000000009", "COCO_train2014_000000000009", "9"} <= set(one.images[0])
    assert cc3m.load(Selection("test"))[0].images == (("0000d", "0000d.jpg"),)
    assert coco.image("COCO_val2014_000000000073.jpg")[0][0] == "COCO_val2014_000000000073"
    path = folder / "vq2a-coco/train.json"
    path.write_text(path.read_text().replace('"9"', '"nine"'))
    with pytest.raises(DataError, match="train.json, row 1: 'nine' is not the number or the file of a picture of COCO"):
        load_task("vq2a-coco", folder).load(Selection("train"))


def test_languages_are_those_of_maxm_and_xgqa(folder):
    assert set(LANGUAGES) == {*load_task("maxm", folder).languages, *load_task("xgqa", folder).languages}
    for selection in (
        Selection("train", "ja"),
        Selection("train", "fr", "5"),
        Selection("train", "fr", translated=True),
    ):
        with pytest.raises(UsageError, match="vqa2 has no"):
            load_task("vqa2", folder).path(selection)
    with pytest.raises(UsageError, match="answers 'french' are not english or translated"):
        load_task("vqa2", folder, answers="french")


def test_a_training_set_is_chosen_for_tasks_without_one_of_their_own(folder, capsys):
    line = ["--encoder", "uniter-small", "--store", "s.roi", "--annotations", str(folder)]
    assert roivault.main(["finetune", *line, "--task", "gqa", "--train-on", "vqa2"]) == 2
    assert "--train-on vqa2 is for maxm and xgqa, not for gqa" in capsys.readouterr().err
    assert roivault.main(["finetune", *line, "--task", "maxm", "--train-on", "vqa2", "--language", "en,xx"]) == 2
    assert "vqa2 has no xx train" in capsys.readouterr().err
    assert roivault.main(["finetune", *line, "--task", "maxm", "--train-on", "vqa2", "--language", "all"]) == 66
    assert "train-bn.jsonl is not there" in capsys.readouterr().err


def test_xgqa_is_trained_on_translated_questions_with_english_answers(folder):
    write_examples(load_task("xgqa", ".").examples, folder)
    task = load_task("xgqa", folder, train_on="vqa2")
    one = task.load(Selection("train", "fr"))[0]
    assert (one.text, one.answer, one.answered_in) == ("Que montre l'image 9 ?", "a dog", "en")
    assert task.labels == ["a dog"] and task.load(Selection("dev"))[0].id == "73000"
    assert [one.id for one in task.load(Selection("test", "de"))] == ["1", "2", "3"]
    with pytest.raises(UsageError, match="xgqa has no fr test"):
        task.path(Selection("test", "fr"))
