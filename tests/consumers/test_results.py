"""The table of results: what is in the file is what was done."""

import pytest

from cache import DataError
from consumers.results import Table


def test_the_last_row_of_a_run_counts(tmp_path):
    table = Table(tmp_path / "deep/t.jsonl")
    table.add({"number": 1}, "failed", error="broken")
    assert not table.is_done({"number": 1}) and table.of({"number": 2}) is None
    table.add({"number": 1}, "done", result={"score": 3})
    again = Table(table.path)
    assert again.is_done({"number": 1}) and len(again.rows) == 1
    assert again.of({"number": 1}) == {"run": {"number": 1}, "status": "done", "result": {"score": 3}}
    assert len(table.path.read_text().splitlines()) == 2


@pytest.mark.parametrize("text", [b"hello\n", b'{"run": 1}\n', b"[]\n", b"\xff\n", b"[" * 99_999 + b"\n"])
def test_another_file_is_not_taken_for_a_table(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_bytes(text)
    with pytest.raises(DataError, match="line 1, is not a row of results"):
        Table(path)
    assert path.read_bytes() == text
