"""What holds for every task, on the miniature that its `examples` describe; a new task needs no more."""

import json
import math

import pytest
import torch

import roivault
from consumers.tasks import Count, Selection, list_tasks, load_task


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=list_tasks())
def small(request, miniature):
    return miniature(lambda folder: load_task(request.param, folder))


def run(capsys, *args):
    code = roivault.main([str(arg) for arg in args])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def data(small):
    return ["--task", small.task.name, "--annotations", small.annotations]


def model(small):
    return ["--encoder", "uniter-small", "--store", small.store, "--tokenizer", small.tokenizer, "--json", "--quiet"]


def finetune(small, out, *more):
    return ["finetune", *data(small), *model(small), "--out", out, "--batch", 2, "--accumulate", 1, *more]


def test_its_files_make_examples(small):
    task = small.task
    assert task.name in list_tasks() and task.counts
    for split in ("train", "dev", "test"):
        assert small.sets(split), f"`examples` of {task.name} lack a {split} set"
        assert split == "test" or Selection(split) in small.sets(split)
        for selection in small.sets(split):
            examples = task.load(selection)
            assert len({one.id for one in examples}) == len(examples)
            assert {label for one in examples for label in one.labels} <= set(range(len(task.labels)))
            assert all(keys and all(keys) for one in examples for keys in one.images)
    assert Count.of(task.load(Selection("train"))).images >= 2


def test_it_is_trained_and_tested(small, tmp_path, capsys):
    code, said, err = run(capsys, *finetune(small, tmp_path / "runs", "--epochs", 1))
    assert code == 0, err
    (row,) = said["runs"]
    assert row["status"] == "done" and 0 <= row["result"]["dev"] <= 100
    for selection in small.sets("test"):
        language = ["--language", selection.language]
        line = ["evaluate", *data(small), *model(small), *language, "--checkpoint", row["result"]["weights"]]
        code, rows, err = run(capsys, *line, "--out", tmp_path / "results")
        assert code == 0, err
        result = rows[0]["result"]
        assert result["n"] == len(small.task.load(selection))
        assert all(math.isfinite(v) for v in result.values() if isinstance(v, float))
        assert run(capsys, *line, "--out", tmp_path / "results")[1] == rows, "done once"
        file = tmp_path / "results" / result["predictions"]
        scores = run(capsys, "evaluate", *data(small), *language, "--predictions", file, "--json")[1]
        name = "accuracy" if small.task.metric == "accuracy" else "ir_r1"
        assert scores[name] == result[name] and scores["n"] == result["n"]
