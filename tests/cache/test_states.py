from __future__ import annotations

import pytest

from cache import CorruptRecord, Failure
from cache.states import FAILURE, REPLACED, WriteResult, decide, decode_failure, encode_failure, overrides

R, F = 0, FAILURE
# stored state, results of one call, on_duplicate -> state to commit (None: keep), (written, duplicates, failed)
CASES = [
    (None, [R], "error", R, (1, 0, 0)),
    (None, [F], "error", F, (0, 0, 1)),
    (F, [R], "error", R, (1, 0, 0)),
    (F, [F], "error", F, (0, 0, 1)),
    (R, [R], "error", ValueError, None),
    (R, [F], "error", ValueError, None),
    (None, [R, R], "error", ValueError, None),
    (None, [R, F], "error", ValueError, None),
    (None, [R], "drop", R, (1, 0, 0)),
    (None, [F], "drop", F, (0, 0, 1)),
    (F, [R], "drop", R, (1, 0, 0)),
    (F, [F], "drop", F, (0, 0, 1)),
    (R, [R], "drop", None, (0, 1, 0)),
    (R, [F], "drop", None, (0, 1, 0)),
    (None, [R, R], "drop", R, (1, 1, 0)),
    (None, [R, F], "drop", R, (1, 1, 0)),
    (None, [F, F], "drop", F, (0, 1, 1)),
    (None, [R], "replace", R, (1, 0, 0)),
    (None, [F], "replace", F, (0, 0, 1)),
    (F, [R], "replace", R | REPLACED, (1, 0, 0)),
    (F, [F], "replace", F | REPLACED, (0, 0, 1)),
    (R, [R], "replace", R | REPLACED, (1, 0, 0)),
    (R, [F], "replace", F | REPLACED, (0, 0, 1)),
    (R, [R, R], "replace", R | REPLACED, (1, 1, 0)),
    (R, [R, F], "replace", R | REPLACED, (1, 1, 0)),
]


@pytest.mark.parametrize("stored, results, on_duplicate, state, counts", CASES)
def test_rule_within_a_call(stored, results, on_duplicate, state, counts):
    named = [("k", flags, b"%d" % place) for place, flags in enumerate(results)]
    if state is ValueError:
        with pytest.raises(ValueError, match="k"):
            decide(named, {"k": stored}, on_duplicate, ValueError)
        return
    states, result = decide(named, {"k": stored}, on_duplicate, ValueError)
    assert states.get("k", (None,))[0] == state
    assert result == WriteResult(*counts)
    if on_duplicate == "replace" and results == [R, R]:
        assert states["k"][1] == b"1"
    elif state is not None and results == [R, R]:
        assert states["k"][1] == b"0"


@pytest.mark.parametrize("earlier, later, wins", [
    (R, R, False), (R, F, False), (F, R, True), (F, F, True),
    (R, R | REPLACED, True), (R, F | REPLACED, True), (F, F | REPLACED, True), (R | REPLACED, R, False),
    (F | REPLACED, R, True),
])  # fmt: skip
def test_rule_between_shards(earlier, later, wins):
    assert overrides(earlier, later) is wins


def test_failures_keep_bytes_that_are_no_text():
    failure = Failure("k", "missing", "no \udcff file\n[red]", "/x/\udce4.jpg")
    assert decode_failure("k", encode_failure(failure)) == failure


@pytest.mark.parametrize(
    "value", [b"", b"{", b"\xff", b"[]", b"null", b'{"kind": "odd", "message": "", "source": ""}', b'{"a":1}']
)
def test_corrupt_failures(value):
    with pytest.raises(CorruptRecord, match="'k'"):
        decode_failure("k", value)
