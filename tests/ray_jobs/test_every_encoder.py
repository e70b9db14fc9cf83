"""Each of the nine encoders, shrunken, through the command line: fine-tuned on a task and tested on it."""

import json
from dataclasses import replace

import numpy as np
import pytest

import roivault
from cache import Regions, StoreWriter
from consumers.encoders import encoder_config, registry
from consumers.encoders.small_tokenizer import CHARACTERS, SPECIAL
from consumers.tasks import load_task
from tests.conftest import Miniature, write_examples

NINE = ("muniter", "xuniter", "uc2", "m3p", "lxmert", "uniter", "vilbert", "visualbert", "vl-bert")
QUICK = ("xuniter", "m3p", "lxmert")
WIDTH = 16  # of features


pytestmark = pytest.mark.usefixtures("one_thread")


def small(config):
    """The same structure over streams of 24."""
    stream = replace(config.text, hidden=24, ffn=32)
    layout = tuple(
        replace(step, **{k: 24 for k in ("text_width", "image_width") if getattr(step, k)}) for step in config.layout
    )
    return replace(
        config, vocab_size=120, max_positions=130, layout=layout, text=stream, image=stream, feature_dim=WIDTH,
        coordinate_dim=2, pool_size=24, classifier_size=24,
    )  # fmt: skip


@pytest.fixture
def shrunken(monkeypatch):
    """Makes the names of the command line those of small encoders."""
    known = {name: small(encoder_config(name)) for name in NINE}
    monkeypatch.setattr(registry, "_configs", lambda: known)
    return known


def make_tokenizer(folder, pad_id):
    """Of letters, padding with the number that the encoder pads with."""
    from transformers import BertTokenizer

    special = list(SPECIAL)
    special.insert(pad_id, special.pop(0))
    folder.mkdir()
    words = [*special, *CHARACTERS, *(f"##{letter}" for letter in CHARACTERS)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def write_store(path, found):
    """Six regions of each picture of a task in miniature."""
    rng = np.random.default_rng(0)
    there = [one for split in ("train", "dev", "test") for one in found.sets(split)]
    with StoreWriter(path, "float32") as writer:
        for key in sorted({keys[0] for one in there for each in found.task.load(one) for keys in each.images}):
            corners = np.sort(rng.random((6, 2, 2), np.float32), 1).reshape(6, 4) * 90
            writer.write([Regions(key, 100, 100, corners, rng.random((6, WIDTH), np.float32))])
    return path


@pytest.mark.parametrize(
    ("task_name", "name"),
    [
        pytest.param(task, name, marks=[] if task == "vsr" and name in QUICK else pytest.mark.slow)
        for task in ("vsr", "maxm", "xm3600")
        for name in NINE
    ],
)
def test_it_is_fine_tuned_and_tested(name, task_name, shrunken, tmp_path, capsys):
    task = load_task(task_name, tmp_path / "annotations")
    write_examples(task.examples, task.annotations)
    found = Miniature(task, task.annotations, tmp_path / "pictures.roi", tmp_path / "tokenizer")
    store = write_store(found.store, found)
    tokenizer = make_tokenizer(found.tokenizer, shrunken[name].pad_id)
    line = ["--encoder", name, "--task", task_name, "--store", store, "--annotations", task.annotations]
    line += ["--tokenizer", tokenizer, "--json", "--quiet"]

    def run(verb, *more):
        code = roivault.main([verb, *map(str, (*line, *more))])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    train = ("--epochs", 1, "--batch", 2, "--accumulate", 1, "--out", tmp_path / "runs")
    weights = run("finetune", *train)["runs"][0]["result"]["weights"]
    selection = found.sets("test")[0]
    more = ("--language", selection.language, "--out", tmp_path / "results")
    (row,) = run("evaluate", "--checkpoint", weights, *more)
    assert row["status"] == "done" and row["result"]["n"] == len(task.load(selection))
