"""Captions of Crossmodal-3600 that are written from the patches of a store."""

import json

import numpy as np
import pytest
import torch

import roivault
from cache import Regions, StoreWriter
from consumers.models import load_model
from consumers.models.captioning import Captions
from consumers.models.writing import IGNORED
from consumers.tasks import Selection, load_task

from ...conftest import write_examples


@pytest.fixture
def task(tmp_path):
    made = load_task("xm3600-captions", tmp_path)
    write_examples(made.examples, tmp_path)
    return made


@pytest.fixture
def patches(task, tmp_path):
    """A store of patches of the pictures to train on and to test on."""
    rows = [one for split in ("train", "test") for one in task.load(Selection(split))]
    rng = np.random.default_rng(1)
    boxes = np.array([[0, 0, 1, 1]] * 4, np.float32)
    with StoreWriter(tmp_path / "patches.roi", "float32") as writer:
        for key in sorted({one.images[0][0] for one in rows}):
            writer.write([Regions(key, 2, 2, boxes, rng.standard_normal((4, 12)).astype(np.float32))])
    return tmp_path / "patches.roi"


@pytest.fixture
def mt5(task, tmp_path, save_mt5):
    texts = [one.answer for split in ("train", "test") for one in task.load(Selection(split))]
    return save_mt5([*texts, "Caption in en : de th Ein Auto"], tmp_path / "mt5")


def run(capsys, *line):
    code = roivault.main([str(part) for part in [*line, "--device", "cpu", "--json", "--quiet"]])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def test_it_is_trained_and_writes_in_every_language(task, patches, mt5, tmp_path, capsys):
    data = ["--task", task.name, "--annotations", task.annotations, "--store", patches, "--encoder", "mt5-captions"]
    recipe = ["--lr", 0.03, "--batch", 2, "--accumulate", 1, "--epochs", 14, "--warmup-updates", 10]
    (row,) = run(capsys, "finetune", *data, "--init", mt5, *recipe, "--out", tmp_path / "runs")["runs"]
    assert row["status"] == "done" and row["result"]["dev"] > 60
    rows = run(
        capsys,
        "evaluate",
        *data,
        "--checkpoint",
        row["result"]["weights"],
        "--language",
        "en",
        "--out",
        tmp_path / "out",
    )
    result = rows[0]["result"]
    said = json.loads((tmp_path / "out" / result["predictions"]).read_text())
    assert [one["questionId"] for one in said] == [one.id for one in task.load(Selection("test"))]
    assert set(word for one in said for word in one["prediction"].split()) <= {"a", "dog", "it", "runs", "0", "1", "2"}
    assert result["n"] == 3 and 0 <= result["cider"] <= 1000 and result["unit"] == "words"
    file = tmp_path / "out" / result["predictions"]
    scores = run_scores(capsys, task, file)
    assert scores["cider"] == result["cider"] and scores["rouge_l"] == result["rouge_l"]


def run_scores(capsys, task, file):
    line = ["evaluate", "--task", task.name, "--annotations", task.annotations, "--predictions", file, "--json"]
    assert roivault.main([str(part) for part in line]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_is_told_the_language(task, mt5):
    model = load_model("mt5-captions", mt5)
    one = task.load(Selection("test", "de"))[0]
    records = [Regions(one.id, 2, 2, np.zeros((1, 4), np.float32), np.zeros((1, 12), np.float32))]
    model.look_at(records[0])
    _, _, ids, _, target = model.batch([one], records, 16)
    assert model.tokenizer.decode(ids[0], skip_special_tokens=True) == "Caption in de :"
    assert model.tokenizer.decode(target[0], skip_special_tokens=True) == "Ein Auto"


def test_what_chooses_the_best_weights_is_the_share_of_words():
    target = torch.tensor([[1, 2, IGNORED], [1, 2, 3]])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 0, 5], [1, 2, 0]]), 6).float()
    assert Captions(None).score(logits, target) == pytest.approx(1 / 2 + 2 / 3)


def test_an_encoder_is_refused_with_the_models_that_can(task, patches, tmp_path, capsys):
    (tmp_path / "weights").write_text("1")
    line = ["evaluate", "--task", task.name, "--annotations", task.annotations, "--store", patches]
    line += ["--encoder", "uc2", "--checkpoint", tmp_path / "weights"]
    assert roivault.main([str(part) for part in line]) == 2
    assert "answered by models that write, such as mt5-captions" in capsys.readouterr().err
