import json

import pytest

from cache import DataError, InputNotFound, UsageError
from consumers.translation import Translator

ROWS = [
    {"source": "fr", "target": "en", "text": "De quelle couleur ?", "translation": "What color?"},
    {"source": "en", "target": "fr", "text": "white", "translation": "blanc"},
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "translations.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS), "utf-8")
    return path


def test_a_file_translates_both_ways(table):
    translate = Translator(str(table))
    assert translate(["De quelle couleur ?"] * 2, "fr", "en") == ["What color?"] * 2
    assert translate(["white"], "en", "fr") == ["blanc"] and translate([], "en", "fr") == []
    assert translate(["anything"], "en", "en") == ["anything"]
    with pytest.raises(DataError, match="lacks 1 of 2 translations from en into fr, such as that of 'red'"):
        translate(["white", "red"], "en", "fr")


def test_a_function_is_asked_once_for_each_text(tmp_path, monkeypatch):
    (tmp_path / "my_translations.py").write_text(
        "asked = []\n"
        "def upper(texts, source, target):\n"
        "    asked.append((texts, source, target))\n"
        "    return [text.upper() for text in texts]\n"
        "def short(texts, source, target):\n"
        "    return texts[1:]\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert Translator("my_translations:upper")(["a", "b", "a"], "fr", "en") == ["A", "B", "A"]
    import my_translations

    assert my_translations.asked == [(["a", "b"], "fr", "en")]
    with pytest.raises(DataError, match="wanted is a text for each"):
        Translator("my_translations:short")(["a", "b"], "fr", "en")
    with pytest.raises(UsageError, match="number is no function"):
        Translator("my_translations:number")
    with pytest.raises(UsageError, match="lower.*PYTHONPATH"):
        Translator("my_translations:lower")
    with pytest.raises(UsageError, match="No module named 'no_such_module'"):
        Translator("no_such_module:upper")


def test_what_is_no_translation_is_told(tmp_path, table):
    with pytest.raises(InputNotFound, match="give a file, or MODULE:FUNCTION"):
        Translator(str(tmp_path / "none.jsonl"))
    table.write_text('{"source": "fr", "target": "en", "text": "a"}\n')
    with pytest.raises(DataError, match="row 1: .* lacks a text for one of source, target, text, translation"):
        Translator(str(table))
