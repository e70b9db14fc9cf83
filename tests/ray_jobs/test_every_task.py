"""What holds for every task, on the miniature that its `examples` describe; a new task needs no more."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import roivault
from consumers.run_log import LOG
from consumers.tasks import Count, Selection, list_tasks, load_task
from consumers.training import LAST, STATE
from ray_jobs.finetune import TABLE
from ray_jobs.signals import INTERRUPTED

ROOT = Path(__file__).resolve().parents[2]


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
    if not small.task.head:  # an encoder cannot write
        assert code == 2 and "it is for the models" in err
        return
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


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / LAST)


def interrupt(line, journal, lines, number):
    """Send a signal to the command once its journal has so many lines. Returns: its exit code."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "roivault.py", *map(str, line)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not journal.exists() or len(journal.read_text().splitlines()) < lines:
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate()
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_that_was_killed_ends_as_one_that_was_not(tmp_path, miniature, capsys, precision):
    small = miniature(lambda folder: load_task("scenes", folder))
    more = ("--epochs", 40, "--scheduled", 40, "--precision", precision)
    line = finetune(small, tmp_path / "killed", *more)
    folder = tmp_path / "killed" / "uniter-small-scenes-en"
    assert interrupt(line, folder / LOG, 2, signal.SIGKILL) == -signal.SIGKILL
    assert not (folder / LAST).exists()
    assert run(capsys, *line)[0] == 0
    assert run(capsys, *finetune(small, tmp_path / "straight", *more))[0] == 0
    straight, killed = (weights(tmp_path / name / folder.name) for name in ("straight", "killed"))
    assert straight.keys() == killed.keys() and all(torch.equal(killed[name], w) for name, w in straight.items())
    logs = [(tmp_path / name / folder.name / LOG).read_text() for name in ("straight", "killed")]
    assert logs[0] == logs[1] and len(logs[0].splitlines()) == 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scenes", "scene-pairs", "flickr30k"])
def test_processes_together_do_what_one_does(name, tmp_path, miniature, capsys):
    pytest.importorskip("ray")
    small = miniature(lambda folder: load_task(name, folder))
    results = []
    for workers in (1, 2):
        more = ("--epochs", 2, "--workers", workers)
        code, said, err = run(capsys, *finetune(small, tmp_path / str(workers), *more))
        assert code == 0, err
        folder = tmp_path / str(workers) / f"uniter-small-{name}-en"
        losses = [json.loads(text)["loss"] for text in (folder / LOG).read_text().splitlines()]
        results.append((said["runs"][0]["result"]["updates"], losses, weights(folder)))
    (updates, losses, alone), (others, theirs, together) = results
    assert updates == others and len(losses) == len(theirs) == 2
    assert theirs == pytest.approx(losses, rel=1e-3)
    for key, tensor in alone.items():
        torch.testing.assert_close(together[key], tensor, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_processes_together_end_after_an_update_and_go_on(tmp_path, miniature, capsys):
    pytest.importorskip("ray")
    small = miniature(lambda folder: load_task("scenes", folder))
    more = ("--epochs", 60, "--scheduled", 60, "--workers", 2)
    line, name = finetune(small, tmp_path / "interrupted", *more), "uniter-small-scenes-en"
    folder = tmp_path / "interrupted" / name
    assert interrupt(line, folder / LOG, 2, signal.SIGINT) == INTERRUPTED
    assert (folder / STATE).exists() and not (folder / LAST).exists()
    assert run(capsys, *line)[0] == 0
    assert run(capsys, *finetune(small, tmp_path / "straight", *more))[0] == 0
    for key, tensor in weights(folder).items():
        torch.testing.assert_close(tensor, weights(tmp_path / "straight" / name)[key], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_grid_that_was_killed_goes_on_with_the_rest(tmp_path, miniature, capsys):
    pytest.importorskip("ray")
    small = miniature(lambda folder: load_task("xvnli", folder))
    line = finetune(small, tmp_path, "--epochs", 1, "--language", "ar", "--shots", 1, "--grid", "fewshot")
    line += ["--engine", "ray"]
    journal = tmp_path / TABLE
    assert interrupt(line, journal, 1, signal.SIGKILL) == -signal.SIGKILL
    begun = journal.read_bytes()
    code, said, err = run(capsys, *line)
    assert code == 0 and journal.read_bytes().startswith(begun), err
    rows = [json.loads(text) for text in journal.read_text().splitlines()]
    assert [row["run"]["recipe"]["lr"] for row in said["runs"]] == [1e-4, 5e-5, 1e-5]
    assert len(rows) == 3 and len(said["best"]) == 1
