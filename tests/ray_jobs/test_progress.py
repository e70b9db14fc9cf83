import io
import json
import time

from ray_jobs.progress import Progress
from ray_jobs.tally import Tally


class Terminal(io.StringIO):
    def isatty(self):
        return True


def tally():
    counts = Tally(listed=100, complete=True, records=40, new=40)
    counts.failures["empty"] = 10
    counts.spend("model", 4.0, 40)
    counts.spend("write", 0.1, 50)
    return counts


def show(stream, **options):
    with Progress(tally(), stream=stream, **options):
        deadline = time.monotonic() + 20
        while not stream.getvalue() and not options.get("quiet") and time.monotonic() < deadline:
            time.sleep(0.01)
    return stream.getvalue()


def test_json_lines_when_it_is_no_terminal():
    line = json.loads(show(io.StringIO(), interval=0.01).splitlines()[0])
    assert (line["done"], line["listed"], line["listing_complete"], line["failed"]) == (50, 100, True, 10)
    assert line["images_per_second"] == {"model": 10.0, "write": 500.0}
    assert line["seconds_left"] >= 0


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = show(Terminal())
    assert "50/100 images" in shown and "10 failed" in shown and "left" in shown


def test_quiet():
    assert show(io.StringIO(), quiet=True, interval=0.01) == ""
    assert show(Terminal(), quiet=True) == ""


def test_no_time_left_is_made_up():
    progress = Progress(Tally(listed=10))
    assert progress.seconds_left(5.0) is None
    counts = tally()
    assert Progress(counts).seconds_left(5.0) == 5.0
    counts.complete = False
    assert Progress(counts).seconds_left(5.0) is None
