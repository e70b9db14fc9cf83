"""Captions about where things are, turned into their opposites: by a relation that excludes the first, or by "not"."""

from __future__ import annotations

from cache import DataError

from ..tasks.vsr import VERBS

_PAIRS = (
    ("facing", "facing away from"),
    ("left of", "right of"),
    ("at the left side of", "at the right side of"),
    ("in front of", "behind"),
    ("above", "below"),
    ("over", "under"),
    ("on top of", "beneath"),
    ("inside", "outside"),
    ("into", "out of"),
    ("near", "far from"),
    ("close to", "far away from"),
    ("toward", "away from"),
    ("connected to", "detached from"),
    ("parallel to", "perpendicular to"),
)
ANTONYMS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])} | {"attached to": "detached from"}


def negated(caption: str, relation: str) -> str:
    """A caption that is false where this one is true: "The cat is behind the dog." for "... in front of ...".

    Raises: DataError: the caption does not hold its relation.
    """
    first, found, second = caption.partition(f" {relation} ")
    if not found:
        raise DataError(f"caption {caption!r} does not hold its relation {relation!r}")
    if relation in ANTONYMS:
        return f"{first} {ANTONYMS[relation]} {second}"
    if relation in VERBS:
        return f"{first} does not {VERBS[relation]} {second}"
    return f"{first} not {relation} {second}"
