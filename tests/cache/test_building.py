from __future__ import annotations

import pytest

from cache import StoreLocked, UsageError
from cache.building import building


def test_a_result_bears_its_name_once_it_is_complete(tmp_path):
    for name in ("file", "folder"):
        with building(tmp_path / "new" / name) as target:
            assert not (tmp_path / "new" / name).exists() and target.parent.name == f"{name}.partial"
            if name == "folder":
                (target / "deep").mkdir(parents=True)
                (target / "deep" / "a").write_text("a")
            else:
                target.write_text("a")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["file", "folder"]
    assert (tmp_path / "new/file").read_text() == (tmp_path / "new/folder/deep/a").read_text() == "a"


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), building(tmp_path / "x") as target:
        target.mkdir()
        (target / "half").write_text("half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_begun_afresh(tmp_path):
    (tmp_path / "x.partial" / "x").mkdir(parents=True)
    (tmp_path / "x.partial" / "x" / "half").write_text("half")
    (tmp_path / "x.partial" / "writer.lock").write_text("{}")
    with building(tmp_path / "x") as target:
        assert not target.exists()
        target.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_is_there_is_never_touched(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="x is there already"), building(tmp_path / "x"):
        pass
    (tmp_path / "y.partial").mkdir()
    (tmp_path / "y.partial" / "letter").write_text("mine")
    with pytest.raises(UsageError, match="letter"), building(tmp_path / "y"):
        pass
    (tmp_path / "z.partial").write_text("mine")
    with pytest.raises(UsageError, match="z.partial"), building(tmp_path / "z"):
        pass
    for place in ("x/deep", "x/deep/er"):
        with pytest.raises(UsageError, match="a folder above it is a file"), building(tmp_path / place):
            pass
    assert (tmp_path / "x").read_text() == (tmp_path / "y.partial/letter").read_text() == "mine"
    assert (tmp_path / "z.partial").read_text() == "mine"


def test_two_at_once(tmp_path):
    with building(tmp_path / "x") as target:
        target.write_text("first")
        with pytest.raises(StoreLocked, match="x.partial"), building(tmp_path / "x"):
            pass
    assert (tmp_path / "x").read_text() == "first"
