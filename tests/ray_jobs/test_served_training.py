"""Trainers that read from a feature server do what they do with the local store."""

import json

import pytest
import torch
from safetensors.torch import load_file

import roivault
from consumers.tasks import load_task
from tests.cache.asker import in_a_process


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, tmp_path):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_finetune_and_evaluate_give_the_same(miniature, tmp_path):
    small = miniature(lambda folder: load_task("xvnli", folder))
    common = ["--encoder", "uniter-small", "--task", "xvnli", "--annotations", small.annotations]
    common += ["--tokenizer", small.tokenizer, "--quiet"]

    def run(store, out):
        train = ["finetune", *common, "--store", store, "--out", out, "--batch", 2, "--accumulate", 1, "--epochs", 2]
        assert roivault.main([str(part) for part in train]) == 0
        return {file.name: file for file in out.rglob("*.safetensors")}

    with in_a_process(small.store) as (_, told):
        far = run(told["url"], tmp_path / "far")
        near = run(small.store, tmp_path / "near")
        assert near and near.keys() == far.keys()
        for name, file in near.items():  # beside the tensors is written where the pictures were
            mine, its = load_file(file), load_file(far[name])
            assert mine and mine.keys() == its.keys() and all(map(torch.equal, mine.values(), its.values()))
        predicted = []
        for store in (told["url"], small.store):
            out = tmp_path / f"scores-{len(predicted)}"
            line = ["evaluate", *common, "--store", store, "--language", "en", "--out", out]
            assert roivault.main([str(part) for part in [*line, "--checkpoint", next(iter(near.values()))]]) == 0
            found = (json.loads(file.read_text()) for file in sorted(out.rglob("*.json")))
            predicted.append([rows for rows in found if isinstance(rows, list)])
        assert predicted[0] == predicted[1] and predicted[0]
