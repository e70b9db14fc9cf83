import io
import json

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
