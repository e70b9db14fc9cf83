import errno
import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_jobs.progress import Progress
from ray_jobs.tally import Tally

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Closed(io.StringIO):
    """A pipe whose reader has gone, or a terminal that was closed."""

    written, terminal = 0, False

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.written += 1
        raise OSError(errno.EIO, "Input/output error") if self.terminal else BrokenPipeError()


class Pace:
    """A pace that does not depend on the clock."""

    elapsed = 20.0

    def recent(self):
        return 10.0


def tally():
    counts = Tally(listed=100, complete=True, records=40, new=40, pace=Pace(), devices=["cuda:0", "cuda:1"])
    counts.failures["empty"] = 10
    counts.seconds.update(model=4.0, write=0.1)
    counts.images.update(model=40, write=50)
    return counts


def show(stream, counts=None, **options):
    with Progress(counts or tally(), stream=stream, **options):
        deadline = time.monotonic() + 20
        while "images" not in stream.getvalue() and not options.get("quiet") and time.monotonic() < deadline:
            time.sleep(0.01)
    return stream.getvalue()


def test_json_lines_when_it_is_no_terminal():
    line = json.loads(show(io.StringIO(), interval=0.01).splitlines()[0])
    assert line == {
        "seconds": 20.0,
        "done": 50,
        "listed": 100,
        "listing_complete": True,
        "new": 40,
        "failed": 10,
        "failures": {"empty": 10},
        "pace": 10.0,
        "seconds_left": 5,
        "images_per_second": {"model": 10.0, "write": 500.0},
        "devices": {"cuda:0": 1, "cuda:1": 1},
    }


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    shown = show(Terminal())
    parts = ("50/100 images", "10 failed", "10/s", "0:00:05 left", "(model 10, write 500)", "on 2 x cuda")
    assert all(part in shown for part in parts)


@pytest.mark.parametrize("columns", [24, 40, 60, 80])
def test_a_narrow_terminal_shows_what_fits_in_one_line(monkeypatch, columns):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", show(Terminal())))
    assert all(len(line) <= columns for line in lines)
    assert any("50/100 images" in line for line in lines)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_draw_gets_json_lines(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    assert json.loads(show(Terminal(), interval=0.01).splitlines()[0])["done"] == 50


def test_no_color(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\d", show(Terminal()))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_reader_that_has_gone_does_not_end_the_job(monkeypatch, terminal):
    monkeypatch.setenv("TERM", "xterm")
    stream = Closed()
    stream.terminal = terminal
    with Progress(tally(), stream=stream, interval=0.01) as progress:
        progress._thread.join(20)
    assert stream.written and not progress._thread.is_alive()


def test_quiet():
    assert show(io.StringIO(), quiet=True, interval=0.01) == ""
    assert show(Terminal(), quiet=True) == ""


def test_no_time_left_is_made_up():
    assert Progress(Tally(listed=10, complete=True)).seconds_left() is None
    counts = tally()
    assert Progress(counts).seconds_left() == 5.0
    counts.complete = False
    assert Progress(counts).seconds_left() is None


def test_records_that_were_there_do_not_shorten_the_time_left():
    counts = Tally(listed=1000, complete=True, records=900, already=900)
    assert Progress(counts).line()["pace"] is None
    counts.pace = Pace()
    assert Progress(counts).seconds_left() == 10.0


def test_the_bar_leaves_a_real_terminal_as_it_was():
    code = (
        "import time; from ray_jobs.progress import Progress; from ray_jobs.tally import Tally\n"
        "with Progress(Tally(listed=7, records=3)): time.sleep(0.6)\n"
    )
    main, end = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], stderr=end, env=env, check=True, timeout=60)
    os.close(end)
    drawn = os.read(main, 1 << 16).decode()
    os.close(main)
    assert "3/7+ images" in drawn
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l"), "the cursor is shown again"
    assert drawn.rstrip("\r\n").endswith("\x1b[2K"), "the bar is gone"
