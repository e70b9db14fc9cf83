import json

import numpy as np
import pytest
import typer

from cache import Failure, StoreWriter
from cache.convert import convert
from cache.errors import DataError, InputNotFound, UsageError
from cache.explain_commands import register
from tests.cache.conftest import command_line
from tests.cache.images import WORDS, image


@pytest.fixture
def run():
    app = typer.Typer()
    register(app)
    return command_line(app)


@pytest.fixture
def write(tmp_path):
    def write(name, records, failures=(), dtype="float32"):
        with StoreWriter(tmp_path / name, dtype, vocabularies=WORDS) as writer:
            writer.write(list(records), list(failures))
        return tmp_path / name

    return write


def test_stats(run, write):
    store = write("s.roi", [image(i) for i in range(6)], [Failure("f", "empty", "")])
    text = run("stats", store)
    for part in ("6 records", "float32", "regions per image\t12\t12\t12\t12\t12", "thing ", "norm of a feature"):
        assert part in text
    result = json.loads(run("stats", store, "--json", "--sample", 2, "--top", 3))
    assert result["records"] == 2 and result["records_in_all"] == 6 and len(result["classes"]) == 3
    assert result["regions_per_image"] == {"12": 2}


def test_stats_of_a_foreign_cache(run, write, tmp_path):
    convert(write("s.roi", [image(i) for i in range(6)], dtype="float16"), tmp_path / "s.tsv", None, "lxmert-tsv")
    assert "6 records" in run("stats", tmp_path / "s.tsv")
    assert json.loads(run("stats", tmp_path / "s.tsv", "--json", "--sample", 2))["records"] == 2
    with (tmp_path / "s.tsv").open("a") as file:
        file.write("damaged\trow\n")
    assert "1 records could not be read" in run("stats", tmp_path / "s.tsv", code=65)


@pytest.mark.parametrize("failures", [[], [Failure("f", "empty", "")]])
def test_without_records(run, write, failures):
    empty = write("e.roi", [], failures)
    assert "0 records" in run("stats", empty, code=65)
    assert json.loads(run("stats", empty, "--json", code=65))["records"] == 0
    assert "no image is in both" in run("compare", empty, empty, code=65)
    assert "0 images in both" in run("compare", empty, write("s.roi", [image(0)]), code=65)


def test_what_is_not_there_or_cannot_be_read(run, write, tmp_path):
    store = write("s.roi", [image(0)])
    for arguments in (("stats", tmp_path / "no.roi"), ("compare", store, tmp_path / "no.roi")):
        with pytest.raises(InputNotFound, match="no.roi"):
            run(*arguments)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="none of the formats"):
        run("stats", tmp_path / "folder")
    for option, value in (("--plot-format", "gif"), ("--plots", __file__)):
        with pytest.raises(UsageError, match=option):
            run("stats", store, option, value)


def test_compare(run, write):
    a = write("a.roi", [image(i) for i in range(12)])
    b = write("b.roi", [r.replace(class_ids=r.class_ids + 1) for r in map(image, range(2, 14))])
    text = run("compare", a, b)
    for part in ("10 images in both, 10 of them equal; 2 only in A, 2 only in B", "class_offset: class ids of B", "+1"):
        assert part in text
    result = json.loads(run("compare", a, b, "--json"))
    assert [cause["cause"] for cause in result["causes"]] == ["class_offset"] and result["missing_in_b"] == 2
    assert "equal: " in run("compare", a, a)
    assert run("compare", a, a, "--fail-on-difference") and run("compare", a, b, "--fail-on-difference", code=65)


def test_compare_chosen_keys(run, write, tmp_path):
    a = write("a.roi", [image(i) for i in range(9)])
    keys = tmp_path / "keys.txt"
    keys.write_text("000001\n000003\n")
    assert "2 images in both" in run("compare", a, a, "--ids", keys)
    assert "4 images in both" in run("compare", a, a, "--sample", 4)
    with pytest.raises(UsageError, match="not both"):
        run("compare", a, a, "--sample", 4, "--ids", keys)
    keys.write_text("")
    with pytest.raises(UsageError, match="no keys"):
        run("compare", a, a, "--ids", keys)
    with pytest.raises(InputNotFound, match="does not exist"):
        run("compare", a, a, "--ids", tmp_path / "nowhere")


def test_format_is_that_of_what_is_no_store(run, write, tmp_path):
    store = write("a", [image(i) for i in range(3)])  # no .roi
    with pytest.raises(InputNotFound, match="nothing at"):
        run("stats", tmp_path / "none.tsv", "--from", "lxmert-tsv")
    with pytest.raises(InputNotFound, match="nothing at"):
        run("compare", store, tmp_path / "none.tsv", "--from", "lxmert-tsv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder cannot be read as lxmert-tsv .*say another format"):
        run("stats", tmp_path / "folder", "--from", "lxmert-tsv")
    assert "3 images in both" in run("compare", store, store, "--from", "lxmert-tsv")


def test_keys_do_not_draw_on_the_terminal(run, write):
    a = write("a.roi", [image(0, key="odd\x1b[31m")])
    b = write("b.roi", [image(1, key="other")])
    assert "\x1b" not in run("compare", a, b, code=65) and "\x1b" not in run(
        "stats", write("c.roi", [image(0, n=0, key="\x1b")])
    )


@pytest.mark.parametrize("form", ["png", "svg"])
def test_plots(run, write, tmp_path, form):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    records = [image(i, n=int(rng.integers(1, 40))) for i in range(8)]
    text = run("stats", write("$ x_^.roi", records), "--plots", tmp_path / "plots", "--plot-format", form)
    names = {"regions", "images", "boxes", "features", "scores", "classes", "attributes"}
    files = {path.stem: path for path in (tmp_path / "plots").iterdir()}
    assert files.keys() == names and all(f"{name}.{form}" in text for name in names)
    head = {"png": b"\x89PNG", "svg": b"<?xml"}[form]
    assert all(path.read_bytes().startswith(head) for path in files.values())
    plain = [r.replace(scores=None, class_ids=None, class_probs=None, attr_ids=None, attr_probs=None) for r in records]
    run("stats", write("plain.roi", plain), "--plots", tmp_path / "fewer", "--plot-format", form)
    assert {path.stem for path in (tmp_path / "fewer").iterdir()} == names - {"scores", "classes", "attributes"}
