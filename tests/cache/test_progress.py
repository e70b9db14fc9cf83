import errno
import io
import json

import pytest

from cache import progress as module
from cache.progress import ByteProgress, Counting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_away_from_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(module, "JSON_SECONDS", 0.0)
    with Counting(2) as progress:
        progress()
        progress()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["images"], line["of"]) for line in lines] == [(1, 2), (2, 2)]


def test_a_bar_on_a_terminal_and_nothing_when_quiet(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with Counting(3) as progress:
        progress()
    assert "1/3" in terminal.getvalue() and "images" in terminal.getvalue()
    monkeypatch.setattr("sys.stderr", quiet := Terminal())
    with Counting(3, quiet=True) as progress:
        progress()
    assert quiet.getvalue() == "" and progress.done == 1


def test_bytes_and_records(monkeypatch, capsys):
    monkeypatch.setattr(module, "JSON_SECONDS", 0.0)
    with ByteProgress("merged") as merged:
        merged(5, 9)
    with Counting(None, what="records") as counted:
        counted(64)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {"merged_bytes": 5, "total_bytes": 9}
    assert second.keys() == {"seconds", "records", "of"} and (second["records"], second["of"]) == (64, None)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with ByteProgress("merged") as merged:
        merged(2048, 4096)
    assert "2.0/4.1 kB" in terminal.getvalue()


class Closed(io.StringIO):
    """What a pipe is whose reader has ended, or a terminal that was closed."""

    def __init__(self, number, terminal):
        super().__init__()
        self._number, self._terminal, self.tries = number, terminal, 0

    def isatty(self):
        return self._terminal

    def write(self, text):
        self.tries += 1
        raise OSError(self._number, "gone")


@pytest.mark.parametrize(("number", "terminal"), [(errno.EPIPE, False), (errno.EIO, True)])
def test_the_work_goes_on_when_nobody_can_be_shown_it(monkeypatch, number, terminal):
    monkeypatch.setattr(module, "JSON_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr", closed := Closed(number, terminal))
    with Counting(2) as progress:
        progress()
        progress.tell("a note")
        progress()
    assert progress.done == 2 and closed.tries
    assert terminal or closed.tries == 1, "tried again"


def test_a_note_is_shown_at_once_unless_quiet(capsys):
    with Counting(2) as progress, Counting(2, quiet=True) as quiet:
        progress.tell("a note")
        quiet.tell("another")
        assert capsys.readouterr().err == "a note\n"
