import io
import json

from cache import progress as module
from consumers.progress import CountProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_facts_are_shown_on_a_terminal_and_anywhere_else(monkeypatch, capsys):
    monkeypatch.setattr(module, "JSON_SECONDS", 0.0)
    with CountProgress("runs") as progress:
        progress(1, 2, loss=0.5)
    assert json.loads(capsys.readouterr().err) == {"runs": 1, "total": 2, "loss": 0.5}
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with CountProgress("runs") as progress:
        progress(1, 2, best_dev=0.25)
    shown = terminal.getvalue()
    assert "runs" in shown and "1/2" in shown and "best dev 0.25" in shown
