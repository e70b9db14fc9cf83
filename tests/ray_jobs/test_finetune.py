"""What `finetune` refuses before it trains, and what a disk that is full leaves behind."""

import errno
import io
import json
import os
import re
import resource
import signal

import numpy as np
import pytest
import torch

import roivault
from cache import Regions, StoreWriter, WeightsError
from consumers.encoders import load_encoder, save_encoder
from consumers.tasks import load_task
from ray_jobs.signals import INTERRUPTED

NAME = "uniter-small-xvnli-en"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(miniature):
    return miniature(lambda folder: load_task("xvnli", folder))


@pytest.fixture
def finetune(small, tmp_path, capsys):
    def run(*more, quiet=True, **instead):
        given = {
            "encoder": "uniter-small", "task": "xvnli", "store": small.store, "annotations": small.annotations,
            "tokenizer": small.tokenizer, "out": tmp_path / "out", "batch": 2, "accumulate": 1, "epochs": 1, **instead,
        }  # fmt: skip
        line = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
        code = roivault.main(["finetune", *line, *["--quiet"] * quiet, *map(str, more)])
        return code, capsys.readouterr()

    return run


def store(path, keys, regions=36, dim=384, length=None, dtype="float32"):
    rng = np.random.default_rng(0)
    with StoreWriter(path, dtype) as writer:
        for key in keys:
            features = rng.random((regions, dim), np.float32)
            if length:
                features *= length / np.linalg.norm(features, axis=1, keepdims=True)
            corners = np.sort(rng.random((regions, 2, 2), np.float32), 1).reshape(regions, 4) * 90
            writer.write([Regions(key, 100, 100, corners, features)])
    return path


@pytest.mark.parametrize(
    ("facts", "code", "message"),
    [
        ({"keys": "0"}, 65, "'1' (other forms of the keys were tried as well)"),
        ({"dim": 64}, 78, "reads features of dimension 384, but '0' in"),
        ({"length": 1}, 78, "have been divided by their length"),
    ],
)
def test_stores_of_another_kind(finetune, tmp_path, facts, code, message):
    found, said = finetune(store=store(tmp_path / "other.roi", **{"keys": "01", **facts}))
    assert found == code and message in said.err, said.err
    assert not (tmp_path / "out" / NAME).exists()


def test_another_number_of_regions_is_told(finetune, tmp_path):
    code, said = finetune(store=store(tmp_path / "other.roi", "01", regions=50))
    assert code == 0 and "have up to 50 regions, of which uniter-small reads 36" in said.out and not said.err


def test_notes_are_told_before_training(finetune, tmp_path, monkeypatch, capsys):
    told = []

    def train(trainer, stop):
        told.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr("consumers.training.Trainer.run", train)
    code, said = finetune(quiet=False, store=store(tmp_path / "other.roi", "01", regions=50))
    assert code == INTERRUPTED and "have up to 50 regions, of which uniter-small reads 36" in told[0]


def test_a_reader_of_the_progress_that_ends_costs_the_run_nothing(finetune, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "gone")

    monkeypatch.setattr("cache.progress.JSON_SECONDS", 0.0)
    with monkeypatch.context() as closed:
        closed.setattr("sys.stderr", Closed())
        code, said = finetune("--json", quiet=False)
    assert code == 0 and json.loads(said.out)["runs"][0]["status"] == "done"


def change(small, old, new):
    path = small.annotations / "XVNLI/annotations/en/train.jsonl"
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sentence2", "sentence", "train.jsonl, row 1: KeyError 'sentence2'"),
        ("neutral", "unsure", "train.jsonl, row 3: gold_label 'unsure' is not one of"),
        ('{"gold', '{gold', "train.jsonl, line 1, is not JSON"),
    ],
)  # fmt: skip
def test_annotations_that_make_no_sense(finetune, small, tmp_path, old, new, message):
    change(small, old, new)
    code, said = finetune()
    assert code == 65 and message in said.err and not (tmp_path / "out" / NAME).exists()


def test_rows_without_a_label_and_blank_ones_are_told(finetune, small):
    code, said = finetune()
    assert code == 0 and "1 of 4 texts to train on are blank" in said.out
    assert "1 of 4 rows to train on have no label, or none that xvnli knows" in said.out
    for label in ("entailment", "contradiction", "neutral"):
        change(small, label, "-")
    code, said = finetune("--seed", 1)
    assert code == 65 and "none of the 4 rows to train on has a label that xvnli knows" in said.err


def test_weights_and_tokenizers_of_other_models(finetune, tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(b"abc")
    code, said = finetune(init=tmp_path / "cut.safetensors")
    assert code == 65 and "cannot be read as a checkpoint" in said.err
    code, said = finetune(tokenizer=tmp_path / "nothing")
    assert code == 66 and "no tokenizer for uniter-small" in said.err
    code, said = finetune(encoder="xuniter")
    assert code == 2 and "needs the tokenizer of xlm-roberta-base" in said.err


def test_weights_of_another_task_go_on_with_a_new_head(finetune, tmp_path):
    torch.manual_seed(0)
    save_encoder(load_encoder("uniter-small", heads=("nlvr2",)), tmp_path / "other.safetensors")
    code, said = finetune(init=tmp_path / "other.safetensors")
    assert code == 0 and "other.safetensors" in said.out and " fresh" in said.out


def test_weights_of_another_task_are_not_evaluated(small, tmp_path, capsys):
    save_encoder(load_encoder("uniter-small", heads=("nlvr2",)), tmp_path / "other.safetensors")
    code = roivault.main([
        "evaluate", "--task", "xvnli", "--annotations", str(small.annotations), "--encoder", "uniter-small",
        "--checkpoint", str(tmp_path / "other.safetensors"), "--store", str(small.store),
        "--tokenizer", str(small.tokenizer), "--out", str(tmp_path / "out"),
    ])  # fmt: skip
    assert code == WeightsError.exit_code and "that was fine-tuned on the task" in capsys.readouterr().err


def test_another_recipe_needs_another_folder(finetune):
    assert finetune()[0] == 0
    code, said = finetune("--lr", 0.5)
    assert code == 78 and "'lr': 0.5" in said.err and "choose another folder" in said.err


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_file_in_the_place_of_the_folder(finetune, tmp_path, inside):
    (tmp_path / "file").write_text("")
    code, said = finetune(out=tmp_path / "file" / inside)
    assert code == 2 and "is no folder, and none can be made there" in said.err


@pytest.mark.parametrize("most", [100_000, 4_000_000])
def test_a_full_disk_leaves_a_run_that_goes_on(finetune, tmp_path, most):
    """The smaller limit stops the weights, the larger one the state."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        code, said = finetune()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert code == 74 and "make room and run the same line again" in said.err
    assert not any(path.suffix == ".partial" for path in (tmp_path / "out" / NAME).iterdir())
    code, said = finetune("--json")
    assert code == 0 and json.loads(said.out)["runs"][0]["result"]["updates"] == 2


def test_a_set_that_fails_costs_the_others_of_a_grid_nothing(finetune, small):
    folder = small.annotations / "XVNLI/annotations/ar"
    (folder / "train_5.jsonl").write_text((folder / "train_1.jsonl").read_text().replace('"1.jpg"', '"7.jpg"'))
    for shots in ("10", "20", "25", "48"):
        (folder / f"train_{shots}.jsonl").write_text((folder / "train_1.jsonl").read_text())
    grid = ("--grid", "fewshot", "--language", "ar", "--json")
    code, said = finetune(*grid)
    found = json.loads(said.out)
    failed = {run["run"]["shots"] for run in found["runs"] if run["status"] == "failed"}
    assert code == 65 and failed == {"5"} and len(found["runs"]) == 18 and len(found["best"]) == 5
    store(small.store, "7", dtype="float16")
    code, said = finetune(*grid)
    assert code == 0 and len(json.loads(said.out)["best"]) == 6
    rows = [json.loads(line) for line in (small.annotations.parent / "out/runs.jsonl").read_text().splitlines()]
    assert len(rows) == 18 + 3 and [row["run"]["shots"] for row in rows[18:]] == ["5"] * 3


@pytest.mark.parametrize(
    ("dev", "code", "message"),
    [("target", 2, "xvnli has no ar dev"), ("translated", 66, "dev-ar_gmt.jsonl is not there")],
)
def test_dev_sets_that_are_not_there(finetune, dev, code, message):
    found, said = finetune("--language", "ar", "--shots", "1", "--dev", dev)
    assert found == code and message in said.err


def test_translated_texts_and_sets_of_many_shots(miniature, finetune, tmp_path):
    small = miniature(lambda folder: load_task("xflickrco", folder))
    folder = small.annotations / "xFlickrCO/annotations/de"
    for name in ("train_ann.jsonl", "train_100x5.jsonl"):
        (folder / name).write_text((small.annotations / "flickr30k/annotations/train_ann.jsonl").read_text())
    common = {"task": "xflickrco", "language": "de", "annotations": small.annotations, "store": small.store}
    code, said = finetune("--translated", "--json", **common)
    (row,) = json.loads(said.out)["runs"]
    assert code == 0 and row["run"]["recipe"]["hard_negatives"] and row["result"]["updates"] == 3, said.err
    code, said = finetune("--grid", "manyshot", "--shots", "100x5", "--json", **common)
    found = json.loads(said.out)
    assert code == 0 and [run["run"]["recipe"]["lr"] for run in found["runs"]] == [1e-4, 5e-5, 1e-5]
    (best,) = found["best"]
    assert best["shots"] == "100x5" and best["dev"] == max(run["result"]["dev"] for run in found["runs"])
    code, said = finetune("--grid", "fewshot", "--shots", "100x5", **common)
    assert code == 2 and "xflickrco has no sets of few shots in 'de' of 100x5 shots" in said.err


def test_a_dev_set_without_labels_is_refused(finetune, small):
    path = small.annotations / "XVNLI/annotations/en/dev.jsonl"
    path.write_text(re.sub('"gold_label": "[a-z]+"', '"gold_label": "-"', path.read_text()))
    code, said = finetune()
    assert code == 65 and "rows to choose the best weights by has a label that xvnli knows" in said.err


def test_other_weights_to_start_from_under_the_same_name_are_told(finetune, tmp_path):
    start = tmp_path / "start.safetensors"
    assert finetune()[0] == 0
    start.write_bytes((tmp_path / "out" / NAME / "best.safetensors").read_bytes())
    assert [finetune(init=start, out=tmp_path / "next")[0] for _ in range(2)] == [0, 0]
    os.utime(start, ns=(1, 1))
    code, said = finetune(init=start, out=tmp_path / "next")
    assert code == 78 and "holds another run (weights: " in said.err


def test_best_weights_that_are_gone_are_told(finetune, tmp_path):
    assert finetune()[0] == 0
    (tmp_path / "out" / NAME / "best.safetensors").unlink()
    (tmp_path / "out/runs.jsonl").unlink()
    code, said = finetune()
    assert code == 65 and "best.safetensors is not there" in said.err and "state.pt to begin this run anew" in said.err


def test_a_grid_of_some_languages_and_of_one_rate(finetune, small):
    code, said = finetune("--grid", "fewshot", "--shots", "1", "--lr", "0.001", "--json", language="ar")
    assert code == 0 and [run["run"]["recipe"]["lr"] for run in json.loads(said.out)["runs"]] == [0.001]
    code, said = finetune("--grid", "fewshot", language="ar,xx,yy")
    assert code == 2 and "xvnli has no sets of few shots in 'xx', 'yy'" in said.err
    code, said = finetune("--grid", "fewshot", "--shots", "1", language="ar,fr")
    assert code == 66 and "annotations/fr/train_1.jsonl is not there" in said.err
