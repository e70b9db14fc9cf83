"""Annotation files of which one part is not what it should be: every task tells where, and none breaks."""

import copy
import json

import pytest

from cache import DataError, RoivaultError
from consumers.task_stats import task_stats
from consumers.tasks import Selection, list_tasks, load_task

from ...conftest import write_examples


def places(value, inside=()):
    """Of every part of a file: of lists the first entries, since the others are like them."""
    yield inside
    names = list(value) if isinstance(value, dict) else range(len(value))[:1] if isinstance(value, list) else ()
    for name in names:
        yield from places(value[name], (*inside, name))


def kinds(files):
    """One path of each kind of file, by the fields of its rows."""
    texts = {path: rows for path, rows in files.items() if not isinstance(rows, str)}
    return {str(sorted(map(str, rows if isinstance(rows, dict) else rows[0]))): path for path, rows in texts.items()}


def replaced(value, place, new):
    if not place:
        return new
    changed = copy.deepcopy(value)
    part = changed
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = new
    return changed


@pytest.mark.parametrize("new", [5, *(pytest.param(one, marks=pytest.mark.slow) for one in (None, "", [], {}))])
@pytest.mark.parametrize("name", list_tasks())
def test_a_part_of_another_kind_is_told_or_read(tmp_path, name, new):
    files = load_task(name, tmp_path).examples
    write_examples(files, tmp_path)
    for path in kinds(files).values():
        for place in places(files[path]):
            if path.endswith(".jsonl") and not place:
                continue
            write_examples({path: replaced(files[path], place, new)}, tmp_path)
            try:
                task_stats(load_task(name, tmp_path))
            except RoivaultError as error:
                assert str(tmp_path) in str(error)
        write_examples({path: files[path]}, tmp_path)


def test_what_should_be_text_is_told(tmp_path):
    task = load_task("vsr", tmp_path)
    rows = copy.deepcopy(task.examples["vsr/data/splits/random/test.jsonl"])
    rows[1]["caption"] = 7
    write_examples({"vsr/data/splits/random/test.jsonl": rows}, tmp_path)
    with pytest.raises(DataError, match=r"test\.jsonl, row 2: the text is 7; wanted is text in quotes"):
        task.load(Selection("test"))


def test_an_id_that_two_rows_have_is_told(tmp_path):
    path = tmp_path / "xm3600/captions.jsonl"
    write_examples(load_task("xm3600", tmp_path).examples, tmp_path)
    path.write_text(path.read_text() + path.read_text().split("\n")[0])
    with pytest.raises(DataError, match=r"captions\.jsonl has more than one row of the id 'd89a4889331ce042#0'"):
        load_task("xm3600", tmp_path).load(Selection("test"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "v2_mscoco_train2014_annotations.json is not a JSON object with a list of annotations"),
        ({"annotations": []}, "row 1: v2_mscoco_train2014_annotations.json has no answers to question 9000"),
    ],
)
def test_questions_without_answers_name_both_files(tmp_path, content, message):
    write_examples(load_task("vqa2", tmp_path).examples, tmp_path)
    (tmp_path / "vqa2/v2_mscoco_train2014_annotations.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        load_task("vqa2", tmp_path).load(Selection("train"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    task = load_task("multi30k", tmp_path)
    write_examples(task.examples, tmp_path)
    before = task.load(Selection("test"))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert task.load(Selection("test")) == before
