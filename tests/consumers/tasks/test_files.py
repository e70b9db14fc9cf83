"""Annotation files in every form in which they are shipped, and damaged ones."""

import gzip
import json
import zipfile

import pytest

from cache import DataError, InputNotFound
from consumers.tasks import Selection, load_task
from consumers.tasks.files import find_file, read_json, read_json_lines, read_lines

ROWS = [{"a": 1}, {"a": "ü"}]
TEXT = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n"


def write(path, form, text=TEXT):
    if form == "plain":
        path.write_text(text, "utf-8")
    elif form == "gzip":
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(text.encode()))
    else:
        with zipfile.ZipFile(path.with_name(path.name + ".zip"), "w") as archive:
            archive.writestr(f"folder/{path.name}", text)
            archive.writestr(f"__MACOSX/folder/{path.name}", "junk")


@pytest.mark.parametrize("form", ["plain", "gzip", "zip"])
def test_reads_every_form(tmp_path, form):
    path = tmp_path / "train.jsonl"
    write(path, form)
    assert list(read_json_lines(path)) == ROWS
    assert find_file(path).parent == tmp_path


def test_the_plain_file_comes_first(tmp_path):
    path = tmp_path / "x.json"
    write(path, "gzip", "[1]")
    write(path, "plain", "[2]")
    assert read_json(path) == [2]


def test_lines_keep_their_spaces_and_blank_ones(tmp_path):
    write(tmp_path / "x.de", "gzip", " ein Hund \n\nzwei\n")
    assert read_lines(tmp_path / "x.de") == [" ein Hund ", "", "zwei"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputNotFound, match="test.jsonl is not there, nor test.jsonl.gz or test.jsonl.zip"):
        list(read_json_lines(tmp_path / "test.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n{", "line 2, is not JSON"),
        ("[1]", "line 1, is not a JSON object"),
        ("{}\n\nnull", "line 3, is not a JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    write(tmp_path / "x.jsonl", "plain", text)
    with pytest.raises(DataError, match=message):
        list(read_json_lines(tmp_path / "x.jsonl"))


def test_damage_is_told(tmp_path):
    path = tmp_path / "x.jsonl"
    path.with_name("x.jsonl.gz").write_bytes(gzip.compress(TEXT.encode() * 99)[:-9])
    with pytest.raises(DataError, match="x.jsonl.gz is damaged"):
        list(read_json_lines(path))
    path.with_name("y.jsonl.zip").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="y.jsonl.zip is damaged"):
        list(read_json_lines(tmp_path / "y.jsonl"))
    path.with_name("z.json").write_bytes(b'["\xff"]')
    with pytest.raises(DataError, match="z.json is damaged"):
        read_json(tmp_path / "z.json")
    with zipfile.ZipFile(tmp_path / "w.json.zip", "w") as archive:
        archive.writestr("other.json", "[]")
    with pytest.raises(DataError, match="holds other.json; wanted is one file named w.json"):
        read_json(tmp_path / "w.json")


def xvnli_row(**changes):
    row = {"gold_label": "neutral", "sentence2": "a", "pairID": "1", "Flikr30kID": "759822302"}
    return {name: value for name, value in (row | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gold_label": "maybe"}, "row 2: gold_label 'maybe' is not one of contradiction"),
        ({"sentence2": None}, "row 2: KeyError 'sentence2'"),
        ({"Flikr30kID": None}, "row 2: an annotation row with the fields .* names no picture"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, changes, message):
    path = tmp_path / "XVNLI/annotations/ar/test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(map(json.dumps, [xvnli_row(), xvnli_row(**changes)])))
    with pytest.raises(DataError, match=message):
        load_task("xvnli", tmp_path).load(Selection("test", "ar"))


def test_the_folder_of_the_dataset_itself_will_do(tmp_path):
    path = tmp_path / "XVNLI/annotations/ar/test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(xvnli_row()))
    (one,) = load_task("xvnli", tmp_path / "XVNLI").load(Selection("test", "ar"))
    assert (one.id, one.text, one.answer, one.labels) == ("1", "a", "neutral", {1: 1.0})
    assert one.images[0][0] == "759822302"
    path.write_text("")
    with pytest.raises(DataError, match="test.jsonl has no rows"):
        load_task("xvnli", tmp_path).load(Selection("test", "ar"))
