"""Which state a key has after several writes."""

from __future__ import annotations

import pytest

from cache import InvalidRegions, StoreWriter, WriteResult, open_store
from cache.verify import verify
from tests.cache.told import failed, states

# (what is done before, on_duplicate, records and failures of the call) -> states, counts or None for refusal.
# Keys: R has a record, F a failure, N nothing.
RULES = [
    ("drop", ["R", "F", "N"], [], {"R": "record", "F": "record", "N": "record"}, (2, 1, 0)),
    ("drop", [], ["R", "F", "N"], {"R": "record", "F": "timeout", "N": "timeout"}, (0, 1, 2)),
    ("replace", ["R", "F", "N"], [], {"R": "record", "F": "record", "N": "record"}, (3, 0, 0)),
    ("replace", [], ["R", "F", "N"], {"R": "timeout", "F": "timeout", "N": "timeout"}, (0, 0, 3)),
    ("error", ["F", "N"], [], {"R": "record", "F": "record", "N": "record"}, (2, 0, 0)),
    ("error", [], ["F", "N"], {"R": "record", "F": "timeout", "N": "timeout"}, (0, 0, 2)),
    ("error", ["N", "R"], [], {"R": "record", "F": "missing"}, None),
    ("error", ["N"], ["R"], {"R": "record", "F": "missing"}, None),
]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("on_duplicate, records, failures, expected, counts", RULES)
def test_state_rule(tmp_path, make, same, sealed, on_duplicate, records, failures, expected, counts):
    path = tmp_path / "a.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make("R")], [failed("F")])
        if sealed:
            writer.seal()
        batch = [make(key, salt=1) for key in records], [failed(key, "timeout") for key in failures]
        if counts is None:
            with pytest.raises(InvalidRegions, match="'R'.*already") as error:
                writer.write(*batch, on_duplicate)
            assert error.value.kind == "duplicate_key"
        else:
            assert writer.write(*batch, on_duplicate) == WriteResult(*counts)
        assert states(path) == expected
    assert states(path) == expected and verify(path).ok
    salt = int("R" in records and on_duplicate == "replace")
    if expected["R"] == "record":
        assert same(open_store(path)["R"], make("R", salt=salt))
    (path / "index.idx").unlink()
    assert states(path) == expected


def test_duplicates_within_a_call(tmp_path, make, same):
    path = tmp_path / "a.roi"
    twice = [make("a"), make("a", salt=1), make("b")], [failed("b"), failed("c"), failed("c", "timeout")]
    with StoreWriter(path, "float32") as writer:
        with pytest.raises(InvalidRegions):
            writer.write(*twice)
        assert states(path) == {}
        assert writer.write(*twice, "drop") == WriteResult(2, 3, 1)
        assert same(open_store(path)["a"], make("a"))
        assert writer.write(*twice, "replace") == WriteResult(2, 3, 1)
        assert same(open_store(path)["a"], make("a", salt=1))
    assert states(path) == {"a": "record", "b": "record", "c": "timeout"}


def test_a_replacing_failure_and_what_may_follow(tmp_path, make):
    """Record, then a marked failure, then a record again, each in a shard of its own."""
    path = tmp_path / "a.roi"
    with StoreWriter(path) as writer:
        writer.write([make("a")])
        writer.seal()
        writer.write([], [failed("a")], "replace")
        writer.seal()
        assert states(path) == {"a": "missing"} and writer.states(["a"]) == [failed("a")]
        writer.write([make("a")], on_duplicate="drop")
        assert states(path) == {"a": "record"}
    assert states(path) == {"a": "record"} and len(open_store(path)) == 1


def test_a_mark_stays_when_the_state_changes_in_the_same_shard(tmp_path, make, same):
    path = tmp_path / "a.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make("a")])
        writer.seal()
        writer.write([], [failed("a")], "replace")
        writer.write([make("a", salt=1)], on_duplicate="drop")
    assert same(open_store(path)["a"], make("a", salt=1))
