"""The example of docs/adding-a-source.md does what it says, by the tests that run over every source."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from extractor.images import DecodePolicy
from ray_jobs import sources
from ray_jobs.check import check
from ray_jobs.sources import open_source

DOCS = Path(__file__).resolve().parents[3] / "docs" / "adding-a-source.md"
EVERY_SOURCE = Path(__file__).with_name("test_every_source.py")


@pytest.fixture
def flowers(monkeypatch, tmp_path):
    """The module of the example, registered by the line that the page gives."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    name, where = re.search(r'"(\w+)": "([\w.:]+)"', blocks[1]).groups()
    path = tmp_path / "flowers.py"
    path.write_text(blocks[0])
    spec = importlib.util.spec_from_file_location(where.partition(":")[0], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setitem(sources.SOURCES, name, where)
    return sources.source_class(name)


def test_the_example_is_whole(flowers, build, tmp_path, job):
    expected = build(flowers.examples, tmp_path / "data")
    items = list(open_source(f"flowers:{tmp_path}/data").items())
    assert {item.key: item.locator.read(item.key, DecodePolicy()) for item in items} == expected
    assert job(f"flowers:{tmp_path}/data?split=test", tmp_path / "s.roi").records == 1
    assert job.keys == ["image_00003"]
    (tmp_path / "annotations.jsonl").write_text('{"img_path": "image_00002.jpg"}\n{"img_path": "image_00009.jpg"}\n')
    report = check(f"flowers:{tmp_path}/data", f"{tmp_path}/annotations.jsonl", quiet=True)
    assert report.missing == ["image_00009"] and report.parts["train"].found == 2


def test_the_tests_over_every_source_take_it_in(flowers, build, tmp_path):
    spec = importlib.util.spec_from_file_location("every_source_of_the_docs", EVERY_SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_it_describes_itself("flowers")
    miniature = f"flowers:{tmp_path}/data", build(flowers.examples, tmp_path / "data")
    module.test_keys_and_bytes_are_those_of_the_examples(miniature)
    module.test_locators_are_small_and_work_in_other_processes(miniature)
    module.test_the_order_depends_on_names_alone("flowers", miniature, build, tmp_path)
    module.test_check_finds_everything_and_tells_damage(miniature, tmp_path)
