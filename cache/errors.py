"""Every error roivault raises on purpose: it names what is wrong and what to do, and knows its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral


class RoivaultError(Exception):
    """Base of all deliberate errors. `exit_code` is what the command line ends with (see the table in the README)."""

    exit_code = 65


class UsageError(RoivaultError):
    """A wrong option or a combination of options that makes no sense; raised before any work starts."""

    exit_code = 2


def require_whole(name: str, value: object, least: int) -> None:
    """For an option that is a whole number. Raises: UsageError."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} is not a whole number of at least {least}")


def require_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """For an option that is one of a few words. Raises: UsageError."""
    if value not in choices:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(choices)}")


class InputNotFound(RoivaultError):
    """Images, weights or annotations that are not where the caller said."""

    exit_code = 66


class StoreNotFound(InputNotFound):
    """There is no store at the path."""


class WeightsError(RoivaultError):
    """A checkpoint that is damaged, unsafe to load, or does not fit the preset."""


class DataError(RoivaultError):
    """Input that was found but cannot be used as it is."""


class InvalidRegions(DataError, ValueError):
    """A `Regions` whose arrays do not fit together or hold values that must not be stored.

    `kind` is the failure kind a job records for it: bad_boxes, non_finite, value_range, key_invalid or duplicate_key.
    """

    def __init__(self, key: str, kind: str, message: str):
        super().__init__(f"{key!r}: {message}")
        self.key, self.kind, self.message = key, kind, message

    def __reduce__(self):
        return type(self), (self.key, self.kind, self.message)


class CorruptRecord(DataError):
    """Bytes that are not a valid record."""

    def __init__(self, key: str, why: str):
        super().__init__(
            f"record {key!r} is corrupt: {why}; run `roivault repair` on its store, then the line that made it again"
        )
        self.key, self.why = key, why

    def __reduce__(self):
        return type(self), (self.key, self.why)


class StoreDamaged(DataError):
    """A store file that is missing, cut short or altered; names the file, what is wrong with it and the remedy."""

    def __init__(self, path: object, why: str, remedy: str = "run `roivault repair`, or restore the file from a copy"):
        super().__init__(f"{path}: {why}; {remedy} (`roivault verify` lists all damage of a store)")
        self.path, self.why, self.remedy = str(path), why, remedy

    def __reduce__(self):
        return type(self), (self.path, self.why, self.remedy)


class MissingKeys(RoivaultError, KeyError):
    """Keys that the store holds no record of; `keys` has all of them, `hint` what may help.

    A hint may be given as a function: it is worked out when somebody looks at it, since most misses are handled.
    """

    def __init__(self, keys: Sequence[str], where: str = "the store", hint: str | Callable[[], str] = ""):
        self.keys, self.where, self._hint = list(keys), where, hint
        shown = ", ".join(repr(k) for k in self.keys[:5]) + (", ..." if len(self.keys) > 5 else "")
        count = "the key asked for is" if len(self.keys) == 1 else f"{len(self.keys)} of the keys asked for are"
        super().__init__(f"{count} not in {where}: {shown}")

    @property
    def hint(self) -> str:
        if not isinstance(self._hint, str):
            self._hint = self._hint()
        return self._hint

    def __str__(self) -> str:  # KeyError would show the repr of the text
        return self.args[0] + (f" ({self.hint})" if self.hint else "")

    def __reduce__(self):
        return type(self), (self.keys, self.where, self.hint)


class StoreMismatch(RoivaultError):
    """The store was made by other choices than this job's; names each that differs."""

    exit_code = 78


class StoreLocked(RoivaultError):
    """Another process is writing to the store."""

    exit_code = 75


class InfrastructureLost(RoivaultError):
    """The machines or processes that a job ran on are gone; what was committed before is intact."""

    exit_code = 75


class DiskError(RoivaultError):
    """The disk is full or failing; what was committed before is intact."""

    exit_code = 74


class StoreUnreachable(DiskError):
    """What lies behind a URL did not answer in time; nothing says that it is damaged."""

    exit_code = 75
