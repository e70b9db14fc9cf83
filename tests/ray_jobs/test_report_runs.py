import json
from dataclasses import asdict, replace

import pytest

from ray_jobs.report_page import duration, report_page
from ray_jobs.report_runs import MOST_BYTES, MOST_RUNS, Run, append_run, read_runs
from ray_jobs.tally import Tally


def run(number=0):
    about = {"started": "2026-01-01T00:00:00+00:00", "command": "roivault", "verdict": f"run {number}", "exit_code": 0}
    return Run.of(Tally(listed=5, complete=True, records=5, new=number), **about)


def test_runs_come_back_as_they_were(tmp_path):
    wanted = [run(number) for number in range(3)]
    for each in wanted:
        append_run(tmp_path / "runs", each)
    assert read_runs(tmp_path / "runs") == wanted


@pytest.mark.parametrize(
    "line", [b'{"half', b"\xff\xfe", b"null", b"[1]", b"{}", b'{"started": 1}', b"[" * 100_000, b"", b"NaN"]
)
def test_what_is_no_run_is_passed_over(tmp_path, line):
    (tmp_path / "runs").write_bytes(line)
    append_run(tmp_path / "runs", run(7))
    assert read_runs(tmp_path / "runs") == [run(7)] or [r.new for r in read_runs(tmp_path / "runs")] == [7]


@pytest.mark.parametrize(
    ("name", "value"),
    [("listed", "5"), ("failures", {"a": "b"}), ("failures", [1]), ("span_images", "ab"), ("span_images", [None])]
    + [("command", 3), ("devices", [1]), ("seconds", None), ("more", 1)],
)
def test_values_of_other_types_are_passed_over(tmp_path, name, value):
    (tmp_path / "runs").write_text(json.dumps({**asdict(run()), name: value}) + "\n")
    assert read_runs(tmp_path / "runs") == []


def test_only_the_newest_are_read(tmp_path):
    for number in range(3 * MOST_RUNS):
        append_run(tmp_path / "runs", run(number))
    assert [each.new for each in read_runs(tmp_path / "runs")] == list(range(2 * MOST_RUNS, 3 * MOST_RUNS))
    long = replace(run(1), command="x" * MOST_BYTES)
    append_run(tmp_path / "runs", long)
    append_run(tmp_path / "runs", run(2))
    assert [each.new for each in read_runs(tmp_path / "runs")] == [2]


def test_totals_add_up():
    counts = Tally(listed=100, records=60, new=10, already=45)
    counts.failures.update(empty=7)
    each = Run.of(counts, started="", command="", verdict="", exit_code=0)
    assert (each.replaced, each.waiting) == (5, 33)
    assert each.listed == each.records + each.failed + each.waiting
    assert each.records == each.new + each.replaced + each.already


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.4, "59.4 s"), (59.6, "1:00 min"), (725, "12:05 min"), (3600, "1:00:00 h")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_page_of_a_job_of_a_month_and_many_runs_is_small(tmp_path):
    month = replace(run(), seconds=2.6e6, span_seconds=32768.0, span_images=[10**6] * 80, failed=10**6)
    month = replace(month, failures={f"kind{n}": 10**5 for n in range(10)})
    page = report_page("s.roi", [month] * MOST_RUNS, {}, [], {})
    assert len(page) < 60_000 and page.count("<rect") == 80


@pytest.mark.parametrize(
    ("images", "bars", "highest"),
    [([16] * 100, 100, "16"), ([0, 16] * 50, 50, "8"), ([*[0] * 15, 64] * 6, 6, "4"), ([0] * 31 + [8], 1, "2")],
)
def test_bars_are_wide_enough_for_commits_that_are_far_apart(images, bars, highest):
    page = report_page("s.roi", [replace(run(), span_seconds=1.0, span_images=images)], {}, [], {})
    assert page.count("<rect") == bars and f'<div class="soft">{highest}</div>' in page
