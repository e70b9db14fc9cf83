"""`roivault tasks`: what is listed, and what is told of annotations that are there, absent or cut."""

import json

import numpy as np
import pytest

import roivault
from cache import StoreWriter
from consumers.tasks import list_tasks
from tests.consumers.conftest import SHARED, picture


def run(capsys, *args):
    code = roivault.main(["tasks", *map(str, args)])
    return code, capsys.readouterr()


@pytest.fixture
def annotations(tmp_path):
    for language in ("en", "ar"):
        path = tmp_path / f"XVNLI/annotations/{language}/train_1.jsonl"
        path.parent.mkdir(parents=True)
        rows = [
            {"gold_label": label, "sentence2": text, "pairID": str(n), "Flikr30kID": "7"}
            for n, (label, text) in enumerate([("neutral", "a dog"), ("-", ""), ("neutral", "two dogs run")])
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_every_task_is_listed(capsys):
    code, said = run(capsys, "list", "--json")
    assert code == 0 and [row["task"] for row in json.loads(said.out)] == list_tasks()


def test_whole_sets_are_ok_and_others_absent(capsys, annotations):
    code, said = run(capsys, "check", "xvnli", annotations, "--json")
    rows = {row["set"]: row for row in json.loads(said.out)}
    assert code == 0
    assert rows["ar train 1 shots"] == {
        "task": "xvnli", "set": "ar train 1 shots", "state": "ok", "rows": 3, "pictures": 1, "detail": "",
    }  # fmt: skip
    assert rows["fr test"]["state"] == "absent" and rows["fr test"]["detail"].endswith("fr/test.jsonl")


def test_a_cut_set_differs(capsys, annotations):
    path = annotations / "XVNLI/annotations/ar/train_1.jsonl"
    path.write_text(path.read_text().split("\n")[0])
    code, said = run(capsys, "check", "xvnli", annotations, "--json")
    (row,) = [row for row in json.loads(said.out) if row["state"] == "differs"]
    assert code == 65 and row["detail"] == "published are 3 rows and 1 pictures"


def test_pictures_that_a_store_lacks_are_told(capsys, annotations, feature_store):
    path = str(feature_store.paths[0])
    assert run(capsys, "check", "xvnli", annotations, "--store", path)[0] == 0
    for file in annotations.glob("XVNLI/annotations/*/*"):
        file.write_text(file.read_text().replace('"7"', '"777"'))
    code, said = run(capsys, "check", "xvnli", annotations, "--store", path)
    assert code == 65 and "1 pictures are not in the store: 777" in said.out


def test_nothing_there_is_an_error(capsys, tmp_path):
    code, said = run(capsys, "check", "marvl", tmp_path)
    assert code == 66 and "none of the files of marvl; the first would be" in said.err
    assert run(capsys, "check", "marvl", tmp_path / "no")[0] == 66
    code, said = run(capsys, "stats", "marvl", tmp_path)
    assert code == 66 and "none of the files of marvl; the first would be" in said.err
    code, said = run(capsys, "stats", "marvl", tmp_path / "no")
    assert code == 66 and "no are not a folder" in said.err
    assert run(capsys, "check", "nothing", tmp_path)[0] == 2


def test_stats(capsys, annotations):
    code, said = run(capsys, "stats", "xvnli", annotations, "--json")
    english, _ = json.loads(said.out)["sets"]
    assert code == 0 and english["rows"] == 3 and english["blank"] == 1 and english["unlabelled"] == 1
    assert english["labels"] == {"neutral": 2, "-": 1}
    assert english["words"] == {"mean": 5 / 3, "median": 2, "most": 3}
    code, said = run(capsys, "stats", "xvnli", annotations)
    assert code == 0 and "1 shots in each language: 1 pictures (1 published), 3 rows (3 published)" in said.out
    assert english["characters"]["most"] == len("two dogs run") and english["published"] == {"rows": 3, "pictures": 1}


def test_pictures_are_looked_for_in_every_form(capsys, annotations, tmp_path):
    path = tmp_path / "named.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([picture("7.jpg", np.random.default_rng(0))])
    code, said = run(capsys, "check", "xvnli", annotations, "--store", path, "--json")
    rows = [row for row in json.loads(said.out) if row["state"] != "absent"]
    assert code == 0 and len(rows) == 2 and all(row["detail"].endswith("under keys like '7.jpg'") for row in rows)
    assert all(list(row["key_forms"].values()) == [1] for row in rows)
    assert all(form != "0" for row in rows for form in row["key_forms"])


@pytest.mark.skipif(not (SHARED / "data/iglue/datasets").is_dir(), reason="the published annotations are not here")
@pytest.mark.parametrize(
    ("task", "pictures", "rows"),
    [("wit", 6195, 9584), ("marvl", 4913, 5670), ("xvnli", 357, 1164), ("xgqa", 300, 9666), ("xflickrco", 2000, 2000)],
)
def test_published_sets_are_as_the_paper_counts_them(capsys, task, pictures, rows):
    code, said = run(capsys, "stats", task, SHARED / "data/iglue/datasets", "--json")
    found = json.loads(said.out)
    (test,) = [row for row in found["splits"] if row["split"] == "test"]
    assert code == 0 and (test["pictures"], test["rows"]) == (pictures, rows)
    for row in found["sets"]:
        if "published_one_caption" in row:
            assert row["one_caption"] == pytest.approx(row["published_one_caption"], abs=0.1)
    assert bool(found["shared_pictures"]) == (task == "wit")
    if task == "wit":
        shared = found["shared_pictures"]
        assert shared["en"]["ja"] == shared["ja"]["en"] == 338 and shared["el"]["ja"] == 19
        assert run(capsys, "stats", task, SHARED / "data/iglue/datasets")[0] == 0
    odd = {row["shots"]: row["pictures"] for row in found["shots"] if row["pictures"] != [row["published_pictures"]]}
    assert odd == ({"10x2": [85, 87, 90]} if task == "marvl" else {})
    assert all(row["rows"] == [row["published_rows"]] for row in found["shots"])
    assert len(found["shots"]) == {"wit": 0, "marvl": 5}.get(task, 6)
