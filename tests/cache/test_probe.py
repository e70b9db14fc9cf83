from __future__ import annotations

import shutil

from cache.environment import Environment, create
from cache.probe import Findings, probe
from cache.record import encode
from cache.states import FAILURE, REPLACED


def test_what_is_found(tmp_path, make):
    path = tmp_path / "x.lmdb"
    create(path)
    opened = Environment.acquire(path, writable=True)
    record = encode(make("a"), "float16")
    opened.write(lambda view: [view.put(b"a", 0, record), view.put(b"f", FAILURE, b"{}")])
    assert probe(path) == Findings(1, 1, [])  # beside the writer
    opened.write(lambda view: [view.put(b"b", 0, record), view.put(b"\xff", 0, record), view.put(b"g", FAILURE, b"{")])
    found = probe(path)
    opened.release(writable=True)
    assert (found.records, found.failures, len(found.problems)) == (3, 2, 3)
    assert "'b'" in found.problems[0]


def test_files_that_are_no_shard(tmp_path):
    assert len(probe(tmp_path / "x").problems) == 1
    (tmp_path / "x").write_bytes(b"x" * 9000)
    assert len(probe(tmp_path / "x").problems) == 1


def test_what_lies_in_the_working_directory_is_not_run(tmp_path, monkeypatch):
    path = tmp_path / "x.lmdb"
    create(path)
    (tmp_path / "cache.py").write_text("raise SystemExit('the wrong module')")
    (tmp_path / "lmdb.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    assert probe("x.lmdb") == Findings(0, 0, [])


def test_what_a_child_that_ends_early_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    assert probe(tmp_path / "x").problems == ["it cannot be read: exit code 1"]
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho first >&2; echo last >&2; exit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    assert probe(tmp_path / "x").problems == ["it cannot be read: last"]


def test_marks_and_features_are_checked(tmp_path, make):
    path = tmp_path / "x.lmdb"
    create(path)
    opened = Environment.acquire(path, writable=True)
    opened.write(lambda view: view.put(b"a", REPLACED, encode(make("a", d=8), "float16")))
    assert probe(path, "float16", 8) == probe(path) == probe(path, "float16") == Findings(1, 0, [])
    for wrong in (("float16", 9), ("float32", 8)):
        assert "'a'" in probe(path, *wrong).problems[0]
    opened.write(lambda view: view.txn.put(b"b", b"", db=view._replaced))
    opened.release(writable=True)
    assert probe(path).problems == ["b'b' is marked as replaced, and has no state"]
