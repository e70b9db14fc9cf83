from __future__ import annotations

import pickle

import pytest

from cache import errors

MADE = [
    errors.UsageError("m"), errors.CorruptRecord("k", "why"), errors.StoreDamaged("/p", "why"),
    errors.MissingKeys(["a", "b"], "s", "hint"), errors.InvalidRegions("k", "bad_boxes", "m"), errors.StoreLocked("m"),
    errors.StoreMismatch("m"), errors.DiskError("m"), errors.StoreNotFound("m"), errors.WeightsError("m"),
    errors.InfrastructureLost("m"),
]  # fmt: skip


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_travel_between_processes(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


@pytest.mark.parametrize("name, code", [
    ("UsageError", 2), ("InputNotFound", 66), ("StoreNotFound", 66), ("StoreMismatch", 78), ("StoreLocked", 75),
    ("StoreDamaged", 65), ("CorruptRecord", 65), ("DiskError", 74), ("WeightsError", 65), ("DataError", 65),
    ("InfrastructureLost", 75),
])  # fmt: skip
def test_exit_codes(name, code):
    assert getattr(errors, name).exit_code == code


def test_messages_say_what_and_what_to_do():
    assert str(errors.StoreDamaged("/p", "it was cut", "copy it")) == (
        "/p: it was cut; copy it (`roivault verify` lists all damage of a store)"
    )
    assert str(errors.MissingKeys(["a"], "s", "h")) == "the key asked for is not in s: 'a' (h)"
    assert str(errors.MissingKeys(list("abcdefghi"))).startswith("9 of the keys asked for are not in the store: 'a',")
    corrupt = str(errors.CorruptRecord("k", "why"))
    assert "roivault repair" in corrupt and "the line that made it" in corrupt


def test_a_hint_is_worked_out_once_and_when_it_is_looked_at():
    calls = []
    error = errors.MissingKeys(["a"], "s", lambda: calls.append(1) or "h")
    assert error.args and not calls
    assert str(error) == str(error) == "the key asked for is not in s: 'a' (h)" and calls == [1]
    assert pickle.loads(pickle.dumps(errors.MissingKeys(["a"], "s", lambda: "h"))).hint == "h"
