"""Two caches may call the same image differently: which rule makes one's keys of the other's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from .contents import Contents, KeyedContents
from .dataset_keys import DATASETS, image_key
from .errors import DataError
from .keys import file_key
from .regions import Regions

SAMPLE = 256  # keys that are tried
ENOUGH = 0.5  # share of the sample that has to be found under a rule
_CHUNK = 1024
_DIGITS = re.compile(r"(?:.*\D)?(\d+)")


def _number(key: str) -> str:
    """The last digits of the name, without leading zeros: COCO_val2014_000000000042.jpg -> 42."""
    stem = file_key(key, "stem")
    digits = _DIGITS.fullmatch(stem)
    return str(int(digits[1])) if digits else stem


def _dataset(name: str) -> Callable[[str], str]:
    def rule(key: str) -> str:
        try:
            return image_key(name, key)
        except DataError:
            return key

    return rule


AS_IT_IS = "the key as it is"
RULES: dict[str, Callable[[str], str]] = {
    AS_IT_IS: lambda key: key,
    "the file's name without folders": lambda key: file_key(key, "name"),
    "the path without suffix": lambda key: key.rpartition(".")[0] if "." in key.rpartition("/")[2] else key,
    "the file's name without folders and suffix": lambda key: file_key(key, "stem"),
    "the file's name up to its first dot": lambda key: file_key(key, "name").partition(".")[0],
    "the number in the file's name": _number,
    **{f"the key rule of {name}": _dataset(name) for name in DATASETS},
}


@dataclass(frozen=True)
class Translation:
    """How keys of A find their images in B.

    Attributes:
        rule_a, rule_b: names in RULES: a key of A and one of B mean one image if the two rules give the same.
        by_form: what rule_b gives -> key of B; None where rule_b changes nothing.
    """

    rule_a: str = AS_IT_IS
    rule_b: str = AS_IT_IS
    by_form: Mapping[str, str] | None = None

    @property
    def changes(self) -> bool:
        return (self.rule_a, self.rule_b) != (AS_IT_IS, AS_IT_IS)

    def __call__(self, key: str) -> str | None:
        """The key of B for one of A; None if B has none."""
        form = RULES[self.rule_a](key)
        return form if self.by_form is None else self.by_form.get(form)


def translation(a: Contents, b: KeyedContents, sample: Sequence[str] | None = None) -> Translation:
    """The simplest rules under which at least half of a sample of A's keys are found in B; else keys are as they are.

    Where B's keys have to be changed, a table of all of them is made.
    """
    keys = list(sample) if sample is not None else _sample(a)
    if not keys or _share(b, keys) >= ENOUGH:
        return Translation()
    shares = {rule: _share(b, [change(key) for key in keys]) for rule, change in RULES.items()}
    best = max(shares, key=shares.get)
    if shares[best] >= ENOUGH:
        return Translation(best)
    forms = {rule: {change(key) for key in keys} for rule, change in RULES.items()}
    pairs = [(AS_IT_IS, rule) for rule in RULES] + [(rule, rule) for rule in RULES]
    found: dict[tuple[str, str], set[str]] = {pair: set() for pair in pairs if pair[1] != AS_IT_IS}
    for key in b.keys():
        for (rule_a, rule_b), hits in found.items():
            if (form := RULES[rule_b](key)) in forms[rule_a]:
                hits.add(form)
    shares = {pair: len(hits) / len(keys) for pair, hits in found.items()}
    best_pair = max(shares, key=shares.get)
    if shares[best_pair] < ENOUGH:
        return Translation()
    change = RULES[best_pair[1]]
    return Translation(*best_pair, {change(key): key for key in b.keys()})


def _sample(contents: Contents) -> list[str]:
    if isinstance(contents, KeyedContents):
        return list(contents.chosen(SAMPLE))
    first: Iterator = islice(contents.records(), SAMPLE)
    return [record.key for record in first if isinstance(record, Regions)]


def _share(b: KeyedContents, keys: Sequence[str]) -> float:
    """Share of different keys that b has: forms that many images fall together in do not count as found."""
    return sum(b.has(list(dict.fromkeys(keys)))) / len(keys)


def missing_from(a: KeyedContents, b: KeyedContents) -> Iterator[str]:
    """The keys of b that a has no record of."""
    keys = b.keys()
    while chunk := list(islice(keys, _CHUNK)):
        yield from (key for key, there in zip(chunk, a.has(chunk), strict=True) if not there)
