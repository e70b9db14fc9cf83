"""The example of docs/adding-a-task.md does what it says, by the tests that run over every task."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from consumers import recipes, tasks
from consumers.tasks import Selection, load_task

DOCS = Path(__file__).resolve().parents[2] / "docs" / "adding-a-task.md"
EVERY_TASK = Path(__file__).with_name("test_every_task.py")


@pytest.fixture
def weather(monkeypatch, tmp_path):
    """The name of the example, registered by the lines that the page gives."""
    module, *lines = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    (name, where), (_, base) = (re.search(r'"(\w+)": "([\w:]+)"', text).groups() for text in lines)
    path = tmp_path / "weather.py"
    path.write_text(module)
    spec = importlib.util.spec_from_file_location(f"{tasks.__name__}.{where.partition(':')[0]}", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setitem(sys.modules, spec.name, made)
    monkeypatch.setitem(tasks.TASKS, name, where)
    monkeypatch.setitem(recipes.SAME_AS, name, base)
    return name


def test_the_tests_over_every_task_take_it_in(weather, miniature, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("every_task_of_the_docs", EVERY_TASK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = miniature(lambda folder: load_task(weather, folder))
    module.test_its_files_make_examples(small)
    module.test_it_is_trained_and_tested(small, tmp_path, capsys)
    assert [str(one) for one in small.sets("test")] == ["en test", "de test"]
    (one, _) = small.task.load(Selection("test", "de"))
    assert (one.text, one.answer, one.labels, one.images[0][0]) == ("It is raining.", "no", {0: 1.0}, "1007129816")
