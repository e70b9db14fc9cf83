"""The example of docs/adding-a-model.md does what it says."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cache import Regions
from consumers import models
from consumers.recipes import published_recipe
from consumers.tasks import load_task
from consumers.tasks.vsr import EXAMPLES
from tests.consumers.models.small_vsr import WIDTHS, picture, save_model

DOCS = Path(__file__).resolve().parents[3] / "docs" / "adding-a-model.md"


@pytest.fixture
def blind(monkeypatch, tmp_path):
    """The name of the example, registered by the line that the page gives."""
    module, line = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    name, where = re.search(r'"(\w+)": "([\w:]+)"', line).groups()
    path = tmp_path / "blind.py"
    path.write_text(module)
    spec = importlib.util.spec_from_file_location(f"{models.__name__}.{where.partition(':')[0]}", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setitem(sys.modules, spec.name, made)
    monkeypatch.setitem(models.MODELS, name, where)
    return name


def test_it_is_loaded_and_does_not_see_boxes(blind, tmp_path):
    task = load_task("vsr", ".")
    rows = [task.example(str(n), record) for n, record in enumerate(EXAMPLES)]
    folder = save_model("lxmert-vsr", tmp_path / "weights", [one.text for one in rows])
    model = models.load_model(blind, folder, task)
    one = picture("1", np.random.default_rng(0), WIDTHS["lxmert-vsr"])
    moved = Regions("1", 100, 100, one.boxes[::-1], one.features)
    with torch.inference_mode():
        outputs = [model(*model.batch(rows[:1], [each], 32)) for each in (one, moved)]
    assert torch.equal(*outputs) and outputs[0].shape == (1, 2)
    assert published_recipe("vsr", blind).batch == 32
