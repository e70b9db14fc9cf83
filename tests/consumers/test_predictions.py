"""Predictions files: the published ones score as published, and what is wrong with others is told."""

import csv
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cache import DataError, InputNotFound
from consumers.predictions import right_ones, score_predictions
from consumers.tasks import Selection, load_task

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data/iglue"


def published(task, model, language, shots, table):
    """(scores of a published predictions file, the published score)"""
    if not DATA.is_dir():
        pytest.skip("the published predictions are not here")
    folder = "zero_shot" if shots == "0" else "few_shot"
    file = DATA / f"results/{task}/{folder}/{model}/test_{language}_{shots}_result.json.gz"
    with open(DATA / f"results/{task}/{table}_{shots}.csv") as rows:
        row = next(row for row in csv.DictReader(rows) if row["model"] == model)
    return score_predictions(load_task(task, DATA / "datasets"), file, Selection("test", language)), float(
        row[language]
    )


@pytest.mark.parametrize("model", ["uc2", "ctrl_xuniter"])
@pytest.mark.parametrize(("language", "shots"), [("en", "0"), ("bn", "0"), ("zh", "5"), ("ru", "48")])
def test_published_answers_score_as_published(model, language, shots):
    scores, wanted = published("xgqa", model, language, shots, "xGQA")
    assert scores["accuracy"] == pytest.approx(wanted, abs=1e-12)
    assert scores["n"] == 9666


@pytest.mark.parametrize("model", ["uc2", "ctrl_xuniter"])
@pytest.mark.parametrize(("language", "shots"), [("en", "0"), ("ja", "0"), ("ru", "25")])
def test_published_rankings_score_as_published(model, language, shots):
    scores, wanted = published("xflickrco", model, language, shots, "xFlickrCO_ir")
    assert round(scores["ir_r1"], 2) == wanted
    halves = scores["subsets"]
    assert (halves["flickr"]["ir_r1"] + halves["coco"]["ir_r1"]) / 2 == pytest.approx(scores["ir_r1"])
    assert "tr_r1" not in scores and scores["ir_r1"] < scores["ir_r5"] < scores["ir_r10"]


ROWS = [("neutral", "1"), ("contradiction", "2"), ("-", "3"), ("entailment", "4")]


@pytest.fixture
def xvnli(tmp_path):
    path = tmp_path / "XVNLI/annotations/en/test.jsonl"
    path.parent.mkdir(parents=True)
    rows = [{"gold_label": a, "sentence2": "t", "pairID": i, "Flikr30kID": i} for a, i in ROWS]
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task("xvnli", tmp_path)


def written(tmp_path, value):
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(value))
    return path


def test_names_or_numbers_of_classes_and_other_rows_are_taken(tmp_path, xvnli):
    said = [
        {"question_id": 1, "answer": "neutral"},
        {"id": "2", "prediction": 0},
        {"id": "3", "prediction": "-"},
        {"id": "4", "prediction": "Entailment"},
        {"id": "77", "prediction": "neutral"},
    ]
    scores = score_predictions(xvnli, written(tmp_path, said), Selection("test"))
    assert (scores["accuracy"], scores["n"]) == (50.0, 4)  # "-" is never right, and case counts


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([{"id": "1", "prediction": "neutral"}], "3 of 4 rows of the annotations have no prediction: 2, 3, 4"),
        ([{"id": "1"}], "row 0 is .*; wanted is"),
        ([5], "row 0 is 5; wanted is"),
        ([{"id": "1", "answer": 1}, {"id": "1", "answer": 2}], "1 has two different predictions"),
        ({"1": "neutral"}, "holds a dict, not a list"),
        ([{"id": "1", "answer": None}], "row 0 has None for answer; wanted is a text, or a class"),
        ([{"id": "1", "answer": float("nan")}] * 2, "row 0 has nan for answer"),
        ([{"id": "1", "answer": ["neutral"]}], "row 0 has .* for answer"),
        ([{"id": str(n), "answer": 3} for n in range(1, 5)], "3 is no class; there are 3, from 0"),
        ([{"id": str(n), "answer": -1} for n in range(1, 5)], "-1 is no class"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, xvnli, said, message):
    with pytest.raises(DataError, match=message) as caught:
        score_predictions(xvnli, written(tmp_path, said), Selection("test"))
    assert "predictions.json" in str(caught.value)


def test_rows_may_be_named_by_their_numbers(tmp_path, xvnli):
    said = [{"question_id": 3, "answer": 2}, *({"question_id": n, "answer": "neutral"} for n in range(3))]
    xvnli.gold = lambda selection: [replace(e, id=f"pair-{e.id}") for e in xvnli.load(selection)]
    assert score_predictions(xvnli, written(tmp_path, said), Selection("test"))["accuracy"] == 50.0
    with pytest.raises(DataError, match="4 of 4 rows of the annotations have no prediction"):
        score_predictions(xvnli, written(tmp_path, said[1:]), Selection("test"))


def test_what_a_file_is_does_not_depend_on_its_name(tmp_path, xvnli):
    said = [{"id": str(n), "prediction": "neutral"} for n in range(1, 5)]
    path = tmp_path / "predictions.txt"
    path.write_bytes(gzip.compress(json.dumps(said).encode()))
    assert score_predictions(xvnli, path, Selection("test"))["accuracy"] == 25.0


def test_files_that_cannot_be_read(tmp_path, xvnli):
    with pytest.raises(InputNotFound, match="nowhere.json are not there"):
        score_predictions(xvnli, tmp_path / "nowhere.json", Selection("test"))
    path, packed = tmp_path / "p.json.gz", gzip.compress(b"[1, 2]" * 99)
    header = b"\x93NUMPY\x01\x00\x3e\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9)}"
    for data in (packed[:-4], packed[:20] + b"xxxx" + packed[24:], b"[" * 100_000, header.ljust(74), b"\xff"):
        path.write_bytes(data)
        with pytest.raises(DataError, match="p.json.gz is neither one JSON list"):
            score_predictions(xvnli, path, Selection("test"))
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"holds float64 \(3,\), not a matrix of scores"):
        score_predictions(xvnli, path, Selection("test"))


def test_types_of_questions_are_told_by_any_file_that_has_them(tmp_path):
    folder = tmp_path / "gqa/annotations"
    folder.mkdir(parents=True)
    rows = [{"img_id": "n1", "label": {"yes": 1.0}, "question_id": str(n), "sent": "?"} for n in range(3)]
    types = {"0": {"structural": "verify", "detailed": "exist"}, "2": {"structural": "query"}}
    (folder / "testdev.json").write_text(json.dumps(rows))
    (folder / "trainval_label2ans.json").write_text('["yes", "no"]')
    typed = {number: {"types": value} for number, value in types.items()}
    (folder / "testdev_balanced_questions.json").write_text(json.dumps(typed))
    said = [{"questionId": str(n), "prediction": "no" if n else "yes"} for n in range(3)]
    for task, name in (("gqa", None), ("xgqa", "full")):
        found = load_task(task, tmp_path, **({"eval_set": name} if name else {}))
        scores = score_predictions(found, written(tmp_path, said), Selection("test"))
        kinds = scores["subsets"]["structural"]
        assert kinds == {"verify": {"accuracy": 100.0, "n": 1}, "query": {"accuracy": 0.0, "n": 1}}


@pytest.fixture
def flickr(tmp_path):
    path = tmp_path / "flickr30k/annotations/test_ann.jsonl"
    path.parent.mkdir(parents=True)
    rows = [{"id": str(i), "img_path": f"{i}.jpg", "sentences": ["a", "b"]} for i in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task("flickr30k", tmp_path)


def test_a_matrix_of_scores_tells_both_directions(tmp_path, flickr):
    scores = np.repeat(np.eye(3), 2, 0)
    scores[5] = [5, 0, 1]
    np.save(tmp_path / "s.npy", scores)
    found = score_predictions(flickr, tmp_path / "s.npy", Selection("test"))
    assert (found["n"], found["images"]) == (6, 3)
    assert found["ir_r1"] == 100 * (5 / 6) and found["ir_r5"] == 100
    assert found["tr_r1"] == 100 * (2 / 3) and found["subsets"] == {}
    parts = [found[f"{way}_r{k}"] for way in ("ir", "tr") for k in (1, 5, 10)]
    assert found["mean_recall"] == pytest.approx(np.mean(parts))
    assert right_ones(flickr, flickr.gold(Selection("test")), tmp_path / "s.npy").tolist() == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 1, 2]] * 5, "it has 5 rows for the 6 captions"),
        ([[0, 1]] * 6, "row 0 is .*at least 3 different pictures"),
        ([[0, 1, 3]] * 6, "numbers from 0 to 2"),
        ([[0, 1, 1]] * 6, "different pictures"),
        ([[True, 1, 2]] * 6, "wanted are"),
    ],
)
def test_lists_that_do_not_fit(tmp_path, flickr, lists, message):
    with pytest.raises(DataError, match=message):
        score_predictions(flickr, written(tmp_path, lists), Selection("test"))
