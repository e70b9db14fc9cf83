"""Predictions files: the published ones score as published, and what is wrong with others is told."""

import csv
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from cache import DataError, InputNotFound
from consumers.predictions import score_predictions
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
    ],
)
def test_what_is_wrong_is_told(tmp_path, xvnli, said, message):
    with pytest.raises(DataError, match=message) as caught:
        score_predictions(xvnli, written(tmp_path, said), Selection("test"))
    assert "predictions.json" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path, xvnli):
    with pytest.raises(InputNotFound, match="nowhere.json are not there"):
        score_predictions(xvnli, tmp_path / "nowhere.json", Selection("test"))
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(b"[1, 2]")[:-4])
    with pytest.raises(DataError, match="cut.json.gz is neither JSON"):
        score_predictions(xvnli, path, Selection("test"))


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
