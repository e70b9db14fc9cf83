import json

import pytest
from typer.testing import CliRunner

from extractor.presets import list_extractors
from extractor.weights_commands import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_list_tells_what_is_installed_and_where_the_rest_comes_from(run):
    rows = json.loads(run("list", "--json").stdout)
    assert [row["model"] for row in rows] == list_extractors()
    missing = next(row for row in rows if row["model"] == "vg-r101")
    assert not missing["installed"] and missing["urls"]
    text = run("list").stdout
    assert all(row["model"] in text for row in rows) and missing["urls"][0] in text


def test_import_checks_the_file(run, tmp_path):
    (tmp_path / "x.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    result = run("import", "vg-r101", str(tmp_path / "x.pkl"))
    assert result.exit_code != 0 and "os.system" in str(result.exception)


def test_unknown_models_are_refused(run):
    for command in (("fetch", "nonsense"), ("import", "nonsense", "x")):
        result = run(*command)
        assert result.exit_code != 0 and "nonsense" in str(result.exception)


def test_a_model_that_ships_needs_no_fetching(run):
    rows = {row["model"]: row for row in json.loads(run("list", "--json").stdout)}
    if not rows["demo"]["installed"]:
        pytest.skip("the demo's weights are not in this tree")
    assert json.loads(run("fetch", "demo", "--json").stdout)["path"] == rows["demo"]["path"]
