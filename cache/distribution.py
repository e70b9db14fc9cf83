"""Numbers summed up as they come: extremes, mean and a histogram, in memory that does not grow with their count."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

_EXACT = 4096  # whole numbers below this have a bin each
_AT_ONCE = 4096  # numbers that wait to be sorted into bins
_PER_OCTAVE = 16  # bins of other numbers: 4.4 % wide
_OCTAVES = 64  # between 2^-64 and 2^64; what lies beyond counts in the last bin


class Distribution:
    """Extremes, mean and histogram of finite numbers.

    Args:
        whole: they are whole numbers and not negative; small ones then have a bin each. Otherwise bins are 4 % wide,
            which is how exact quantiles are.

    Attributes:
        count, low, high, mean: of all numbers so far; None, but for the count, while there are none.
        bins: bin -> how many numbers are in it; `edges` tells its place.
    """

    def __init__(self, whole: bool = False):
        self.whole = whole
        self._count, self._total = 0, 0.0
        self._low, self._high = math.inf, -math.inf
        self._bins: Counter[int] = Counter()
        self._waiting: list[np.ndarray] = []
        self._waiting_size = 0

    def add(self, values: np.ndarray | float) -> None:
        """Take in numbers; what is not finite is passed over."""
        values = np.array(values, np.float64).ravel()
        self._waiting.append(values)
        self._waiting_size += values.size
        if self._waiting_size >= _AT_ONCE or len(self._waiting) >= _AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Sort what waits into bins: many numbers at once cost little more than one."""
        values = np.concatenate(self._waiting) if self._waiting else np.empty(0)
        self._waiting.clear()
        self._waiting_size = 0
        values = values[np.isfinite(values)]
        if not values.size:
            return
        self._count += values.size
        self._total += float(values.sum())
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        for place, count in zip(*np.unique(self._place(values), return_counts=True), strict=True):
            self._bins[int(place)] += int(count)

    @property
    def count(self) -> int:
        self._settle()
        return self._count

    @property
    def low(self) -> float | None:
        return self._low if self.count else None

    @property
    def high(self) -> float | None:
        return self._high if self.count else None

    @property
    def bins(self) -> Counter[int]:
        self._settle()
        return self._bins

    def _place(self, values: np.ndarray) -> np.ndarray:
        """Bin of each number: 0 for zero, k for the k-th step above it, -k for its mirror image below."""
        size = np.abs(values)
        tiny = 2.0**-_OCTAVES
        steps = np.floor(np.log2(np.maximum(size, tiny)) * _PER_OCTAVE).astype(np.int64) + _OCTAVES * _PER_OCTAVE
        places = np.where(size < tiny, 0, np.sign(values) * np.clip(steps + 1, 1, 2 * _OCTAVES * _PER_OCTAVE))
        if self.whole:
            places = np.where(size < _EXACT, np.rint(values), places + _EXACT)
        return places.astype(np.int64)

    def edges(self, place: int) -> tuple[float, float]:
        """The numbers between which a bin lies."""
        if self.whole and place < _EXACT:
            return place - 0.5, place + 0.5
        step = abs(place) - (_EXACT if self.whole else 0)
        if not step:
            return 0.0, 0.0
        near, far = (2.0 ** ((step - 1 + i) / _PER_OCTAVE - _OCTAVES) for i in (0, 1))
        return (near, far) if place > 0 else (-far, -near)

    @property
    def mean(self) -> float | None:
        return self._total / self._count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The number that `share` of them do not exceed, as exact as the bins are."""
        left = share * self.count
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 0:
                low, high = self.edges(place)
                middle = (low + high) / 2
                return float(min(max(middle, self._low), self._high))
        return self.high

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "min": short(self.low),
            "mean": short(self.mean),
            "median": short(self.quantile(0.5)),
            "p95": short(self.quantile(0.95)),
            "max": short(self.high),
        }


def short(number: float | None) -> float | None:
    """Six digits, which is more than the bins are worth."""
    return None if number is None else float(f"{number:.6g}")
