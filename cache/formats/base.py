"""What a foreign layout is made of, and what its reader and writer tell besides regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import DataError
from ..regions import Regions

ALL_FIELDS = frozenset(
    "boxes features scores class_ids class_probs attr_ids attr_probs class_scores global_features source_digest".split()
)
VG_IDS = "class_ids and attr_ids count the lines of the vocabulary from 0; background has no line"

Vocabularies = Mapping[str, Sequence[str]]
# What code that expects one shape of JSON raises where it is of another; an infinite number overflows
MISSHAPEN = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class BadRow(DataError):
    """One record of a foreign file that cannot be used, or one of ours that the layout cannot hold.

    `kind` is the failure kind that a store records for it.
    """

    def __init__(self, why: str, kind: str = "decode_error"):
        super().__init__(why)
        self.why, self.kind = why, kind

    def __reduce__(self):
        return type(self), (self.why, self.kind)


@dataclass(frozen=True)
class Problem:
    """A record that was left out.

    Attributes:
        where: its place in the source, such as `line 12`.
        why: what is wrong with it.
        key: what it is called, when that could be read.
        kind: one of FAILURE_KINDS.
    """

    where: str
    why: str
    key: str | None = None
    kind: str = "decode_error"

    @classmethod
    def of(cls, error: BadRow, where: str, key: str | None = None) -> Problem:
        return cls(where, error.why, key, error.kind)


@dataclass
class Notes:
    """What readers and writers report besides records.

    Attributes:
        without_place: name of a field that was not carried over -> number of records that had it.
        remarks: what is worth knowing of the file as a whole.
    """

    without_place: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def drop(self, name: str) -> None:
        self.without_place[name] += 1

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


Put = Callable[[Regions], None]


@dataclass(frozen=True)
class Format:
    """One foreign layout. Its readers stream: they hold one record at a time.

    Attributes:
        summary: what it is, in a few words.
        ids: what its class and attribute ids count, and what was done about background.
        carries: the fields of Regions that have a place in it.
        matches: whether a path holds it; looks at the content, not only at the name.
        read: (path, notes) -> Regions and Problems in the file's order. Raises DataError for a file that is unusable
            as a whole.
        write: (path, vocabularies, notes) -> a context whose value takes one Regions at a time and raises BadRow for
            one that the layout cannot hold. What it makes is complete when the context ends without an error.
        suffixes: names of destinations that mean this layout.
        vocabularies: path -> the names that the ids of the file index, for layouts that have names.
        features_as: the dtype in which it holds features, in words where it is not one dtype.
    """

    name: str
    summary: str
    ids: str
    carries: frozenset[str]
    matches: Callable[[Path], bool]
    read: Callable[[Path, Notes], Iterator[Regions | Problem]] | None = None
    write: Callable[[Path, Vocabularies, Notes], AbstractContextManager[Put]] | None = None
    suffixes: tuple[str, ...] = ()
    vocabularies: Callable[[Path], dict[str, list[str]]] | None = None
    features_as: str = "float32"
