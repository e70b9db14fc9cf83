"""The state rule of a store: of all results for a key, which one holds.

A key has one state, a record or a failure. Unless told to replace, a record beats a failure and the record that a store
has stays; a later failure takes the place of an earlier one. A replacing state wins whatever was there before, and is
marked, so that it also overrides the shards before its own. Later means a higher shard number, then a later commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import CorruptRecord
from .regions import Failure

FAILURE = 1  # flag: the state is a failure
REPLACED = 2  # flag: the state overrides whatever earlier shards hold
ON_DUPLICATE = ("error", "drop", "replace")


@dataclass(frozen=True)
class WriteResult:
    """What became of the results of one `write`: each of them is counted once.

    Attributes:
        written: records stored.
        duplicates: results not stored, because the store or the same call has a state that beats theirs.
        failed: failures stored, those of features that the store's dtype cannot hold included.
        nbytes: how long the stored values are together.
    """

    written: int
    duplicates: int
    failed: int
    nbytes: int = field(default=0, compare=False)


def is_record(flags: int | None) -> bool:
    return flags is not None and not flags & FAILURE


def overrides(earlier: int, later: int) -> bool:
    """Of two states of one key, given as flags: does that of the later shard hold?"""
    return bool(later & REPLACED) or not is_record(earlier)


def decide(
    results: Sequence[tuple[str, int, bytes]],
    stored: Mapping[str, int | None],
    on_duplicate: str,
    refuse: Callable[[str], Exception],
) -> tuple[dict[str, tuple[int, bytes]], WriteResult]:
    """Apply the rule to one call.

    Args:
        results: (key, flags, value), records before failures: within a call a record beats a failure.
        stored: flags of the states that the store has.
        on_duplicate: what to do with a result whose key has a record: "error" raises `refuse(key)`.

    Returns: key -> (flags, value) to commit, and the counts.
    """
    states: dict[str, tuple[int, bytes]] = {}
    for key, flags, value in results:
        earlier_here = states[key][0] if key in states else None
        if is_record(stored[key]) or is_record(earlier_here):
            if on_duplicate == "error":
                raise refuse(key)
            if on_duplicate == "drop" or (is_record(earlier_here) and not is_record(flags)):
                continue
        replaces = on_duplicate == "replace" and stored[key] is not None
        states[key] = (flags | REPLACED if replaces else flags), value
    failed = sum(not is_record(flags) for flags, _ in states.values())
    nbytes = sum(len(value) for _, value in states.values())
    return states, WriteResult(len(states) - failed, len(results) - len(states), failed, nbytes)


def encode_failure(failure: Failure) -> bytes:
    """JSON, in ASCII: messages and paths may hold bytes that are no text."""
    return json.dumps({"kind": failure.kind, "message": failure.message, "source": failure.source}).encode()


def decode_failure(key: str, value: bytes | memoryview) -> Failure:
    """Raises: CorruptRecord."""
    try:
        return Failure(key, **json.loads(bytes(value)))
    except (ValueError, TypeError) as error:
        raise CorruptRecord(key, f"not a failure: {error}") from None
