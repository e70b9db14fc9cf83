import json

import numpy as np
import pytest
import typer

from cache import DataError, InputNotFound, Regions, StoreWriter, UsageError
from ray_jobs import source_digests
from ray_jobs.source_digests import compare_digests
from ray_jobs.verify_command import register
from tests.cache.conftest import command_line


@pytest.fixture
def run():
    app = typer.Typer()
    register(app)
    app.callback()(lambda: None)  # one verb alone would be the program itself
    return command_line(app)


@pytest.fixture
def extracted(photos, job, tmp_path):
    """A folder of 12 pictures and its store."""
    folder = photos(12)
    job(folder, tmp_path / "s.roi")
    return folder, tmp_path / "s.roi"


def test_nothing_has_changed(extracted, run):
    folder, store = extracted
    report = compare_digests([store], str(folder))
    assert report.ok and report.same == report.listed == 12
    assert run("verify", store, "--source", folder).startswith("ok: 12 of 12")
    assert run("verify", store, "--source", folder, "-q") == ""


def test_every_kind_of_difference(extracted, picture, run, monkeypatch):
    monkeypatch.setattr(source_digests, "_CHUNK", 5)
    folder, store = extracted
    picture(folder / "0003.png", 99)
    (folder / "0004.png").unlink()
    (folder / "0005.png").write_bytes(b"")
    picture(folder / "new.png", 7)
    text = run("verify", store, "--source", folder, code=65)
    for line in ("changed: 0003.png", "missing: 0004.png", "extra: new.png", "NOT ok: 9 of 12 images"):
        assert line in text
    result = json.loads(run("verify", store, "--source", folder, "--json", code=65))
    counts = {name: result[name] for name in ("same", "changed", "missing", "unreadable", "extra", "listed")}
    assert sum(counts[name] for name in ("same", "changed", "unreadable", "extra")) == counts["listed"] == 12
    assert counts["missing"] == 1 and result["keys"]["missing"][0]["key"] == "0004.png"
    assert {row["key"] for name in ("changed", "unreadable") for row in result["keys"][name]} == {
        "0003.png",
        "0005.png",
    }


def test_failures_are_no_differences(photos, job, tmp_path):
    folder = photos(3)
    (folder / "bad.jpg").write_bytes(b"no picture")
    job(folder, tmp_path / "s.roi", max_failures="100%")
    report = compare_digests([tmp_path / "s.roi"], str(folder))
    assert report.ok and (report.same, report.failed, report.extra) == (3, 1, 0)


def test_key_rule_of_the_store_is_taken(photos, job, tmp_path):
    folder = photos(3)
    job(folder, tmp_path / "s.roi", key="stem")
    assert compare_digests([tmp_path / "s.roi"], str(folder)).ok
    assert compare_digests([tmp_path / "s.roi"], str(folder), "path").missing == 3


def test_wrong_folder(extracted, picture, tmp_path):
    folder, store = extracted
    picture(tmp_path / "other" / "cat.png", 50)
    report = compare_digests([store], str(tmp_path / "other"))
    assert (report.same, report.extra, report.missing) == (0, 1, 12)
    with pytest.raises(InputNotFound):
        compare_digests([store], str(folder / "nowhere"))


def test_records_without_digests(tmp_path, photos):
    with StoreWriter(tmp_path / "s.roi", "float32") as writer:
        boxes = np.zeros((1, 4), np.float32)
        writer.write([Regions(f"{i:04d}.png", 9, 9, boxes, np.ones((1, 4), np.float32)) for i in range(3)])
    with pytest.raises(DataError, match="identify"):
        compare_digests([tmp_path / "s.roi"], str(photos(3)))


def test_a_store_without_records(tmp_path, photos):
    StoreWriter(tmp_path / "s.roi").close()
    report = compare_digests([tmp_path / "s.roi"], str(photos(2)))
    assert not report.ok and report.extra == 2 and report.exit_code == 65


def test_kept_differences_are_bounded(extracted, photos, monkeypatch):
    monkeypatch.setattr(source_digests, "MOST_KEPT", 2)
    folder, store = extracted
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes() + b" ")
    told = []
    report = compare_digests([store], str(folder), on_difference=lambda *difference: told.append(difference))
    assert report.changed == 12 and len(report.kept["changed"]) == len(told) == 2


def test_options_that_do_not_go_together(extracted, run, tmp_path):
    folder, store = extracted
    assert "ok: 12 records" in run("verify", store)
    (tmp_path / "ids").write_text("0000.png\n")
    assert "other keys" in run("verify", store, "--ids", tmp_path / "ids")
    for options in (("--key", "stem"), ("--source", folder, "--digest"), ("--source", folder, "--ids", "x")):
        with pytest.raises(UsageError):
            run("verify", store, *options)
