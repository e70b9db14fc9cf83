"""Shared by the tests of all packages: a task in miniature, that is the files that its `examples` describe, a store of
their pictures, and a tokenizer of their words."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest


def pytest_collection_modifyitems(config, items):
    """Where processes share the tests (make test), those of a file stay together, and so do all that start Ray: each
    of its clusters takes the machine for its own."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            name = "ray" if "ray_jobs" in item.path.parts and "ray" in item.path.stem else str(item.path)
            item.add_marker(pytest.mark.xdist_group(name))


class Miniature(NamedTuple):
    task: object
    annotations: Path
    store: Path
    tokenizer: Path

    def sets(self, split):
        """The selections of a split whose files are there."""
        from consumers.tasks import Selection

        selections = [Selection(split, language) for language in dict.fromkeys(["en", *self.task.languages])]
        return [one for one in selections if self._is_there(one)]

    def _is_there(self, selection):
        from cache import UsageError

        try:
            return self.task.is_there(selection)
        except UsageError:
            return False


def write_examples(examples, folder):
    for name, rows in examples.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        else:
            path.write_text(rows if isinstance(rows, str) else json.dumps(rows), "utf-8")


@pytest.fixture
def miniature(tmp_path):
    """Task -> `Miniature`, for the encoder `uniter-small`."""
    from cache import Regions, StoreWriter
    from consumers.encoders import encoder_config
    from consumers.encoders.small_tokenizer import make_tokenizer

    def build(make):
        task = make(tmp_path / "annotations")
        write_examples(task.examples, task.annotations)
        found = Miniature(task, task.annotations, tmp_path / "pictures.roi", tmp_path / "tokenizer")
        sets = [where for split in ("train", "dev", "test") for where in found.sets(split)]
        examples = [one for where in sets for one in task.load(where)]
        config, rng = encoder_config("uniter-small"), np.random.default_rng(0)
        with StoreWriter(found.store, "float16") as writer:
            for key in sorted({keys[0] for one in examples for keys in one.images}):
                corners = np.sort(rng.random((6, 2, 2), np.float32), 1).reshape(6, 4) * 90
                writer.write([Regions(key, 100, 100, corners, rng.random((6, config.feature_dim), np.float32))])
        make_tokenizer([one.text for one in examples], found.tokenizer, config.vocab_size)
        return found

    return build


@pytest.fixture
def odd_tensors():
    """What a file of torch may hold that no network can use, by name; "expanded" would fill the memory."""
    import torch

    return {
        "expanded": torch.zeros(1).expand(1 << 40),
        "meta": torch.zeros(2, device="meta"),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "sparse": torch.ones(2, 2).to_sparse(),
        "complex": torch.ones(2, dtype=torch.complex64),
    }
