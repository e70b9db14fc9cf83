from __future__ import annotations

import io
import sys

import pytest

from cache.output import say, size, table, visible


@pytest.mark.parametrize("text, shown", [
    ("a/b c\u00e9\U0001f600[red]", "a/b c\u00e9\U0001f600[red]"), ("a\nb\t\0", r"a\nb\t\x00"), ("\x1b[0m", r"\x1b[0m"),
    ("\u202e\u200b\udcff", r"\u202e\u200b\udcff"), ("", ""),
])  # fmt: skip
def test_visible(text, shown):
    assert visible(text) == shown


def test_characters_that_the_terminal_lacks(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    monkeypatch.setattr(sys, "stdout", out)
    say("caf\u00e9", 3)
    out.flush()
    assert out.buffer.getvalue() == b"caf\\xe9\t3\n"


def test_tables(capsys, monkeypatch):
    table(("key", "n"), [("[red]a", 1), ("b\n", 2)])
    assert capsys.readouterr().out == "[red]a\t1\nb\\n\t2\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    table(("key", "n"), [("[red]a", 1), ("b\n", 2)])
    drawn = capsys.readouterr().out
    assert "key" in drawn and "[red]a" in drawn and "b\\n" in drawn


@pytest.mark.parametrize("count, text", [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (8 << 30, "8.0 GiB"), (3 << 50, "3072.0 TiB")
])  # fmt: skip
def test_size(count, text):
    assert size(count) == text
