"""The report of real runs of the fake job."""

import html.parser
import itertools
import json
import os
import re

import pytest
from PIL import Image

from cache import DiskError, open_store
from cache.verify import verify
from ray_jobs import report, report_pictures
from ray_jobs.options import ExtractOptions
from ray_jobs.report import command_line
from ray_jobs.report_runs import read_runs
from ray_jobs.report_samples import FAILURES_SHOWN, RECORDS_SHOWN


class Page(html.parser.HTMLParser):
    """Checks that every element is closed, and collects what a browser would load, run and show."""

    VOID = {"meta", "img", "rect", "!doctype"}

    def __init__(self, text):
        super().__init__()
        self.open, self.loaded, self.scripts, self.words, self.tags = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open += [] if tag in self.VOID - {"rect"} else [tag]
        for name, value in attributes:
            if name in ("src", "href", "data", "action"):
                self.loaded.append(value)
            if name.startswith("on") or tag == "script":
                self.scripts.append((tag, name, value))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page(store):
    return Page((store / "report" / "index.html").read_text("utf-8"))


def runs(store):
    return read_runs(store / "report" / "runs.jsonl")


@pytest.fixture
def store(tmp_path):
    return tmp_path / "s.roi"


@pytest.fixture
def mixed(photos):
    """20 pictures, 8 that end early, an empty one and a text."""
    folder = photos(20)
    Image.effect_noise((64, 64), 80).save(folder / "whole.jpg")
    whole = (folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    for number in range(8):
        (folder / f"cut{number}.jpg").write_bytes(whole[: -100 - number])
    (folder / "empty.jpg").touch()
    (folder / "text.png").write_text("no picture")
    return folder


def test_report_of_a_job(job, mixed, store):
    summary = job(mixed, store)
    assert summary.report == str(store / "report" / "index.html") and summary.exit_code == 65
    shown = page(store)
    assert "30 listed = 20 in the store + 10 failed; 20 in the store = 20 new + 0 from before" in shown.text
    for part in (
        "truncated",
        "not_an_image",
        "empty.jpg",
        "and 2 more",
        "4 regions",
        "demo",
        "float32",
        summary.verdict,
    ):
        assert part in shown.text
    pictures = [uri for uri in shown.loaded if uri.startswith("data:image/jpeg;base64,")]
    assert pictures == shown.loaded and not shown.scripts, "the page needs nothing and runs nothing"
    assert len(pictures) == RECORDS_SHOWN + FAILURES_SHOWN
    assert shown.tags.count("rect") >= 1
    (run,) = runs(store)
    assert (run.listed, run.records, run.new, run.failed, run.waiting) == (30, 20, 20, 10, 0)
    assert run.failures == {"truncated": 8, "empty": 1, "not_an_image": 1} and sum(run.span_images) == 30
    assert run.nbytes > 20 * 2048 and run.regions == 80 and run.devices == ["fake"] and run.exit_code == 65


def test_the_store_is_whole_with_its_report(job, mixed, store):
    job(mixed, store)
    assert verify(store).ok and len(open_store(str(store))) == 20
    assert sorted(os.listdir(store / "report")) == ["index.html", "runs.jsonl"]


def test_each_run_adds_to_the_history(job, mixed, store):
    job(mixed, store, limit=5)
    job(mixed, store, limit=25)
    job(mixed, store, max_failures="100%")
    assert [(r.new, r.already, r.failed, r.listed) for r in runs(store)] == [
        (5, 0, 0, 5),
        (15, 5, 5, 25),
        (0, 20, 10, 30),
    ]
    shown = page(store)
    assert "Runs (3)" in shown.text and "20 in the store = 0 new + 20 from before" in shown.text


def test_a_run_with_nothing_to_do_leaves_the_report_alone(job, photos, store):
    job(photos(3), store)
    before = {name: (store / "report" / name).stat().st_mtime_ns for name in os.listdir(store / "report")}
    assert job(photos(3), store).report == str(store / "report" / "index.html")
    assert before == {name: (store / "report" / name).stat().st_mtime_ns for name in os.listdir(store / "report")}


def test_nothing_listed_makes_no_folder(job, tmp_path, store):
    (tmp_path / "none").mkdir()
    assert job(tmp_path / "none", store).report is None and not store.exists()


HOSTILE = ["<script>alert(1)<", 'a" onerror="alert(1)', "new\nline", "&lt;b&gt;", "{{7*7}}", "a\u202eb", "\x1b[31m"]


def test_hostile_names_are_text(job, picture, tmp_path, store):
    for index, name in enumerate(HOSTILE):
        picture(tmp_path / "in" / f"{name}.png", index)
        (tmp_path / "in" / f"{name}.jpg").write_text("no picture")
    with open(os.fsencode(tmp_path / "in") + b"/\xff\xfe.png", "wb") as file:
        Image.new("RGB", (9, 9)).save(file, "PNG")
    job(tmp_path / "in", store)
    shown = page(store)
    assert not shown.scripts and all(uri.startswith("data:image/jpeg;base64,") for uri in shown.loaded)
    for name in ("<script>alert(1)<", 'a" onerror="alert(1)', r"new\nline", "&lt;b&gt;", r"a\u202eb", "%FF%FE.png"):
        assert name in shown.text


def test_an_interrupted_run_has_a_report(job, photos, store):
    class Stopping(job.model):
        def extract(self, images, keys):
            os.kill(os.getpid(), 2)
            return super().extract(images, keys)

    job.model = Stopping
    summary = job(photos(100), store)
    (run,) = runs(store)
    assert summary.exit_code == run.exit_code == 130
    assert run.waiting == run.listed - run.records > 0
    assert f"{run.records} in the store + 0 failed + {run.waiting} not reached" in page(store).text


@pytest.mark.parametrize(
    ("error", "exit_code"), [(DiskError("the disk at / is full"), 74), (ZeroDivisionError("x"), 1)]
)
def test_a_run_that_ends_with_an_error_has_a_report(job, photos, store, error, exit_code):
    class Failing(job.model):
        def extract(self, images, keys):
            if len(job.keys) >= 32:
                raise error
            return super().extract(images, keys)

    job.model = Failing
    with pytest.raises((DiskError, RuntimeError)):
        job(photos(64), store)
    (run,) = runs(store)
    assert run.exit_code == exit_code and str(error) in run.verdict and run.records == 32
    assert str(error) in page(store).text and RECORDS_SHOWN == len(page(store).loaded)


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), MemoryError(), KeyboardInterrupt()])
def test_a_report_that_fails_changes_nothing_of_how_the_job_ends(job, photos, store, monkeypatch, capsys, problem):
    def fail(*_):
        raise problem

    monkeypatch.setattr(report, "append_run", fail)
    summary = job(photos(3), store, quiet=False)
    assert (summary.exit_code, summary.report, len(open_store(str(store)))) == (0, None, 3)
    assert "No report of this run: " in capsys.readouterr().err


def test_no_other_file_than_its_own_is_taken_for_the_folder(job, photos, store):
    job(photos(3), store, limit=1)
    for name in ("index.html", "runs.jsonl"):
        (store / "report" / name).unlink()
    (store / "report").rmdir()
    (store / "report").write_text("mine")
    assert job(photos(3), store).report is None
    assert (store / "report").read_text() == "mine"


def test_pictures_that_are_gone_or_changed_are_left_out(job, photos, store, picture, monkeypatch):
    folder = photos(4)

    class Vanishing(job.model):
        def extract(self, images, keys):
            (folder / "0001.png").unlink()
            picture(folder / "0002.png", 99)
            (folder / "0003.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
            return super().extract(images, keys)

    job.model = Vanishing
    assert job(folder, store).exit_code == 0
    assert len(page(store).loaded) == 1


@pytest.mark.parametrize("kind", ["worker_crash", "timeout"])
def test_what_ended_a_process_is_not_opened_again(job, photos, store, monkeypatch, kind):
    job(photos(1), store)
    (item,) = [item for item in job_items(photos(1))]
    samples = report_pictures.Samples()
    maker = report_pictures.PictureMaker(open_store(str(store)), samples)
    assert maker.thumbnail(item, "truncated") is not None
    assert maker.thumbnail(item, kind) is None


def job_items(folder):
    from ray_jobs.sources import open_source

    return open_source(str(folder)).items()


def test_large_pictures_are_not_opened(job, photos, store, monkeypatch):
    monkeypatch.setattr(report_pictures, "MOST_PIXELS", 10)
    job(photos(3), store)
    assert page(store).loaded == [] and "Some of the pictures" not in page(store).text


def test_pictures_take_no_longer_than_their_time(job, photos, store):
    job(photos(6), store)
    ticks = (0.4 * report_pictures.MOST_SECONDS * number for number in itertools.count())
    samples = report_pictures.Samples()
    for item in job_items(photos(6)):
        samples.keep(item)
    maker = report_pictures.PictureMaker(open_store(str(store)), samples, clock=lambda: next(ticks))
    assert len(list(maker.samples())) == 2


def test_command_line():
    options = ExtractOptions(source="my photos", output="s.roi", model="demo", limit=3, retry_failed=True)
    assert command_line(options) == "roivault extract 'my photos' --output s.roi --model demo --limit 3 --retry-failed"


def test_runs_are_lines_of_json(job, photos, store):
    job(photos(2), store)
    (line,) = (store / "report" / "runs.jsonl").read_text("ascii").splitlines()
    assert json.loads(line)["stage_images"]["write"] == 2
