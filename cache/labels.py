"""How the class or attribute ids of two caches agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST_SHIFT = 2  # differences of ids that are told apart


@dataclass
class Labels:
    """How the ids of matched regions agree.

    Attributes:
        regions: that have an id on both sides.
        same_id, same_name: of those, how many agree; by name where both sides have names.
        named: of those, how many have names on both sides.
        shifts: id of B - id of A -> regions; None stands for more than MOST_SHIFT.
    """

    regions: int = 0
    same_id: int = 0
    same_name: int = 0
    named: int = 0
    shifts: Counter[int | None] = field(default_factory=Counter)

    def add(self, ids_a: np.ndarray, ids_b: np.ndarray, words_a: Sequence[str], words_b: Sequence[str]) -> None:
        shift = ids_b.astype(np.int64) - ids_a
        self.regions += len(shift)
        self.same_id += int(np.count_nonzero(shift == 0))
        for step, count in zip(
            *np.unique(np.clip(shift, -MOST_SHIFT - 1, MOST_SHIFT + 1), return_counts=True), strict=True
        ):
            self.shifts[int(step) if abs(step) <= MOST_SHIFT else None] += int(count)
        for one, two in zip(names_of(ids_a, words_a), names_of(ids_b, words_b), strict=True):
            if one is not None and two is not None:
                self.named += 1
                self.same_name += one == two

    def to_dict(self) -> dict[str, Any]:
        shifts = {"more" if step is None else f"{step:+d}": count for step, count in self.shifts.most_common()}
        return {"regions": self.regions, "same_id": self.same_id, "named": self.named, "same_name": self.same_name,
                "id_of_b_minus_id_of_a": shifts}  # fmt: skip


def names_of(ids: np.ndarray, words: Sequence[str]) -> list[str | None]:
    """The name of each id, None where it has none."""
    return [words[i] if 0 <= i < len(words) else None for i in ids.tolist()]
