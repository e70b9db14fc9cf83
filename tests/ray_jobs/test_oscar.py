"""OSCAR+ shrunken through the command line: fine-tuned on xGQA and on retrieval with object tags, and tested."""

import json
from dataclasses import replace

import numpy as np
import pytest

import roivault
from cache import Regions, StoreMismatch, StoreWriter
from consumers.encoders import encoder_config, registry
from consumers.encoders.small_tokenizer import make_tokenizer
from consumers.tasks import load_task
from tests.conftest import Miniature, write_examples

WIDTH = 16
NAMES = ["dog", "red bus", "tree"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def shrunken(monkeypatch):
    known = {}
    for name in ("oscar", "oscar-plus", "oscar-plus-emb", "oscar-plus-ada"):
        config = encoder_config(name)
        stream = replace(config.text, hidden=24, ffn=32)
        known[name] = replace(
            config, vocab_size=120, max_positions=170, separator_id=3, text=stream, image=stream, feature_dim=WIDTH,
            pool_size=24, classifier_size=24, adapters=(8, 4) if config.adapters else None,
        )  # fmt: skip
    monkeypatch.setattr(registry, "_configs", lambda: known)


def write_store(path, found, with_classes):
    rng = np.random.default_rng(0)
    there = [one for split in ("train", "dev", "test") for one in found.sets(split)]
    with StoreWriter(path, "float32", vocabularies={"classes": NAMES}) as writer:
        for key in sorted({keys[0] for one in there for each in found.task.load(one) for keys in each.images}):
            corners = np.sort(rng.random((6, 2, 2), np.float32), 1).reshape(6, 4) * 90
            classes = rng.integers(0, 3, 6).astype(np.int32) if with_classes else None
            writer.write([Regions(key, 100, 100, corners, rng.random((6, WIDTH), np.float32), class_ids=classes)])
    return path


@pytest.fixture
def command(shrunken, tmp_path, capsys):
    """Runs a verb for an encoder and a task in miniature: its code, what it printed, and the task."""

    def run(verb, name, task_name, *more, with_classes=True):
        task = load_task(task_name, tmp_path / "annotations")
        write_examples(task.examples, task.annotations)
        found = Miniature(task, task.annotations, tmp_path / f"{with_classes}.roi", tmp_path / "tokenizer")
        if not found.store.exists():
            write_store(found.store, found, with_classes)
            make_tokenizer(["dog red bus tree"], found.tokenizer, 120)
        line = ["--encoder", name, "--task", task_name, "--store", found.store, "--annotations", task.annotations]
        line += ["--tokenizer", found.tokenizer, "--json", "--quiet"]
        code = roivault.main([verb, *map(str, (*line, *more))])
        said = capsys.readouterr()
        return code, json.loads(said.out), found

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("oscar-plus", "xgqa"), ("oscar", "flickr30k"), ("oscar-plus", "nlvr2"), ("oscar-plus-emb", "xgqa"),
        ("oscar-plus-ada", "xgqa"),
    ],
)  # fmt: skip
def test_it_is_fine_tuned_and_tested(name, task, command, tmp_path):
    train = ("--epochs", 1, "--batch", 2, "--out", tmp_path / "runs")
    code, done, found = command("finetune", name, task, *train)
    assert code == 0, done
    weights = done["runs"][0]["result"]["weights"]
    selection = found.sets("test")[0]
    more = ("--checkpoint", weights, "--language", selection.language, "--out", tmp_path / "results")
    code, rows, _ = command("evaluate", name, task, *more)
    assert code == 0, rows
    assert rows[0]["status"] == "done" and rows[0]["result"]["n"] == len(found.task.load(selection))


@pytest.mark.slow
def test_a_store_without_classes_is_refused_where_tags_are_read(command, tmp_path):
    code, said, _ = command("finetune", "oscar-plus", "xgqa", "--out", tmp_path / "runs", with_classes=False)
    assert code == StoreMismatch.exit_code
    assert "no classes of its regions: extract with a preset that detects" in json.dumps(said)
