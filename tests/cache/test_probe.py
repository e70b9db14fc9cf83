from __future__ import annotations

from cache.environment import Environment, create
from cache.probe import Findings, probe
from cache.record import encode
from cache.states import FAILURE


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
