"""What of a dataset is on disk: expected and found, missing, extra, unreadable, duplicate."""

import json
import os

import pytest

import roivault
from cache import DataError, InputNotFound, UsageError
from ray_jobs.check import check
from ray_jobs.sources import SOURCES
from ray_jobs.sources.coco import CocoSource


@pytest.fixture
def coco(tmp_path, picture, monkeypatch):
    """Five pictures of val2014, one of which is no picture, and some other things; val2014 should have 6 of them."""
    for n in range(4):
        picture(tmp_path / f"coco/val2014/COCO_val2014_{n:012}.png", n)
    (tmp_path / "coco/val2014/COCO_val2014_000000000004.jpg").write_bytes(b"<html>")
    picture(tmp_path / "coco/copy/COCO_val2014_000000000001.png")
    picture(tmp_path / "coco/holiday.png")
    (tmp_path / "annotations").mkdir()
    images = [{"id": n, "file_name": f"COCO_val2014_{n:012}.jpg"} for n in (1, 2, 4, 7, 8)]
    (tmp_path / "annotations/instances_val2014.json").write_text(json.dumps({"images": images, "annotations": []}))
    monkeypatch.setattr(CocoSource, "counts", CocoSource.counts | {"val2014": 6})
    return tmp_path / "coco"


@pytest.fixture
def cli(capfd):
    def run(*args):
        code = roivault.main(["sources", *map(str, args)])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


def test_against_published_counts(coco):
    report = check(f"coco:{coco}", quiet=True)
    assert (report.parts["val2014"].expected, report.parts["val2014"].found) == (6, 5)
    assert report.parts["train2014"].found == 0 and report.found == 5
    assert [(f.key, f.kind) for f in report.unreadable] == [("COCO_val2014_000000000004", "not_an_image")]
    assert [(f.key, f.kind) for f in report.duplicates] == [("COCO_val2014_000000000001", "duplicate_key")]
    assert (report.others, report.first_others) == (1, [f"{coco}/holiday.png"])
    assert report.exit_code == 65 and report.verdict == (
        "Incomplete: val2014 lacks 1 of 6; 1 cannot be read; 1 have a key that another one has."
    )


def test_against_annotations(coco):
    report = check(f"coco:{coco}", str(coco.parent / "annotations"), quiet=True)
    assert report.annotations == {"instances_val2014.json": {"expected": 5, "missing": 2}}
    assert report.missing == ["COCO_val2014_000000000007", "COCO_val2014_000000000008"] and report.extra == 2
    assert "2 of the annotated pictures are missing" in report.verdict and "lacks" not in report.verdict


def test_a_complete_part_is_enough(coco):
    os.remove(coco / "val2014/COCO_val2014_000000000004.jpg")
    os.rename(coco / "copy/COCO_val2014_000000000001.png", coco / "copy/COCO_val2014_000000000009.png")
    (coco / "annotations.txt").write_text("COCO_val2014_000000000009.jpg\n")
    assert check(f"coco:{coco}/copy", str(coco / "annotations.txt"), quiet=True).exit_code == 0


def test_all_of_a_picture_is_looked_at_on_request(tmp_path, picture):
    path = picture(tmp_path / "a.png")
    path.write_bytes(path.read_bytes()[:-60])
    assert check(f"folder:{tmp_path}", quiet=True).exit_code == 0
    report = check(f"folder:{tmp_path}", full=True, quiet=True)
    assert [f.kind for f in report.unreadable] == ["truncated"] and report.exit_code == 65


def test_what_cannot_be_checked(coco, tmp_path):
    with pytest.raises(UsageError, match="folder is none"):
        check(f"folder:{coco}", str(tmp_path), quiet=True)
    with pytest.raises(InputNotFound, match="gone"):
        check(f"coco:{coco}", f"{tmp_path}/gone", quiet=True)
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(DataError, match="bad.jsonl"):
        check(f"coco:{coco}", f"{tmp_path}/bad.jsonl", quiet=True)
    (tmp_path / "other.jsonl").write_text('{"imageId": "1"}\n')
    with pytest.raises(DataError, match="name no picture of coco"):
        check(f"coco:{coco}", f"{tmp_path}/other.jsonl", quiet=True)


def test_places_that_cannot_be_listed(tmp_path, picture):
    picture(tmp_path / "a.png")
    (tmp_path / "b.tar").write_bytes(b"nothing")
    report = check(f"archive:{tmp_path}", quiet=True)
    assert (report.found, report.cut_short, report.exit_code) == (0, 1, 65)


def test_the_command(cli, coco):
    code, out, err = cli("check", "coco", coco, "--annotations", coco.parent / "annotations")
    assert (code, err) == (65, "")
    for part in ("val2014\t6\t5\tincomplete", "missing: COCO_val2014_000000000007", "holiday.png", "Incomplete:"):
        assert part in out
    code, out, _ = cli("check", "coco", f"{coco}?split=train2014", "--json", "--decode")
    report = json.loads(out)
    assert code == 65 == report["exit_code"] and report["parts"] == {"train2014": {"expected": 82783, "found": 0}}
    assert cli("check", "coco", f"{coco}/gone")[0] == 66
    code, _, err = cli("check", "cooc", coco)
    assert code == 2 and "do you mean coco?" in err
    code, out, _ = cli("check", "folder", coco / "copy", "--quiet")
    assert (code, out) == (0, "Complete: 1 pictures.\n")


def test_the_list(cli):
    code, out, _ = cli("list")
    assert code == 0 and all(f"{name}: " in out for name in SOURCES) and "31,783" in out
    assert [row["name"] for row in json.loads(cli("list", "--json")[1])] == list(SOURCES)
