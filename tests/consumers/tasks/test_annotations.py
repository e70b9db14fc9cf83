"""The published annotation files: every one loads, and has the rows and pictures that its publishers state."""

import os
from pathlib import Path

import pytest

from cache import InputNotFound, UsageError
from consumers.tasks import Count, Selection, list_tasks, load_task

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "data"
NOT_SHIPPED = {("xgqa", language) for language in ("bn", "de", "id", "ko", "pt", "ru", "zh")}  # their test questions


def published(name):
    folder = DATA / ("multi30k" if name == "multi30k" else "vsr" if name.startswith("vsr") else "iglue/datasets")
    if not folder.is_dir():
        pytest.skip("the published annotations are not here")
    return load_task(name, folder)


NOWHERE = ("maxm", "xm3600-captions")  # nobody may pass the file on


@pytest.mark.parametrize(
    "name", [name for name in list_tasks() if any(load_task(name, ".").counts.values()) and name not in NOWHERE]
)
def test_every_file_has_the_published_counts(name):
    task = published(name)
    for selection, count in task.counts.items():
        if count is None:  # a file too large to be published beside the others
            continue
        if selection.split == "test" and (name, selection.language) in NOT_SHIPPED:
            with pytest.raises(InputNotFound, match=f"testdev_balanced_questions_{selection.language}.json is not"):
                task.load(selection)
            continue
        examples = task.load(selection)
        assert Count.of(examples) == count, selection
        assert len({example.id for example in examples}) == len(examples), selection


def test_rows_without_an_agreed_label_stay_in_xvnli():
    for language in ("en", "ar", "es", "fr", "ru"):
        examples = published("xvnli").load(Selection("test", language))
        answers = [example.answer for example in examples]
        counts = [answers.count(label) for label in ("contradiction", "neutral", "entailment", "-")]
        assert counts == [375, 381, 394, 14]
        assert sum(not example.labels for example in examples) == 14


def test_an_answer_outside_the_vocabulary_has_no_class():
    examples = published("gqa").load(Selection("test"))
    assert [e.answer for e in examples if not e.labels] == ["bottle cap", "bottle cap"]
    assert len({e.answer for e in examples}) == 722
    assert published("gqa").labels[1773] == "yes"


def test_the_few_shot_test_set_of_xgqa_is_what_the_other_sets_leave():
    ids = (DATA / "derived/xgqa_fewshot_test_question_ids.txt").read_text().split() if DATA.is_dir() else []
    examples = published("xgqa").load(Selection("test"))
    assert [e.id for e in examples] == ids or {e.id for e in examples} == set(ids)
    assert len(load_task("xgqa", DATA / "iglue/datasets", eval_set="full").load(Selection("test"))) == 12578


def test_xvnli_can_leave_out_what_has_no_label():
    for language in ("en", "ar"):
        whole = published("xvnli").load(Selection("test", language))
        labelled = load_task("xvnli", DATA / "iglue/datasets", eval_set="labelled")
        found = labelled.load(Selection("test", language))
        assert (len(whole), len(found)) == (1164, 1150) and found == [one for one in whole if one.labels]
        assert labelled.load(Selection("train", "ar", "5")) == published("xvnli").load(Selection("train", "ar", "5"))


def test_labels_of_two_kinds_are_one():
    marvl = published("marvl").load(Selection("test", "sw"))
    assert [sum(e.answer == label for e in marvl) for label in ("True", "False")] == [547, 561]
    assert {e.labels[1] for e in marvl if e.answer == "True"} == {1.0}
    nlvr2 = published("nlvr2").load(Selection("dev"))
    assert sum(1 in e.labels for e in nlvr2) == 3551
    assert nlvr2[0].images[0][0] == "dev-850-0-img0"


def test_marvl_keys_tell_the_language():
    keys = {language: {k[0] for e in published("marvl").load(Selection("test", language)) for k in e.images}
            for language in ("id", "sw", "ta", "tr", "zh")}  # fmt: skip
    assert len(set().union(*keys.values())) == sum(map(len, keys.values())) == 4913


def test_blank_captions_keep_their_place():
    german = published("xflickrco").load(Selection("test", "de"))
    assert german[1959].text == ""
    assert [e.facts["subset"] for e in german] == ["flickr"] * 1000 + ["coco"] * 1000
    assert sum(not e.text.strip() for e in published("wit").load(Selection("test", "el"))) == 1


@pytest.mark.parametrize(
    ("name", "selection"),
    [
        ("xvnli", Selection("test", "zh")),
        ("xvnli", Selection("train", "ar")),
        ("xvnli", Selection("train", "ar", "7")),
        ("xgqa", Selection("dev", "ar")),
        ("marvl", Selection("train", "sw", "1")),
        ("xflickrco", Selection("train", "es", "200")),
        ("wit", Selection("test", "fr")),
        ("multi30k", Selection("test", "ru")),
        ("flickr30k", Selection("test", "de")),
    ],
    ids=str,
)
def test_a_selection_that_does_not_exist_is_refused_with_those_that_do(name, selection, tmp_path):
    with pytest.raises(UsageError, match=f"{name} has no {selection}; its {selection.split} sets are"):
        load_task(name, tmp_path).load(selection)


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown task 'vqa'; choose from xvnli"):
        load_task("vqa", tmp_path)
    with pytest.raises(UsageError, match="evaluation set 'all'"):
        load_task("xgqa", tmp_path, eval_set="all")
    with pytest.raises(UsageError, match="split 'testing'"):
        load_task("xvnli", tmp_path).load(Selection("testing"))
