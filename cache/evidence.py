"""What was measured of two caches, in words."""

from __future__ import annotations

from typing import Any

from .distribution import Distribution


def short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


def told(alignments: dict[str, float]) -> list[str]:
    return [f"{what}: {value:.2f} (1: the same, 0: unrelated)" for what, value in alignments.items()]


def distribution(what: str, numbers: Distribution) -> str:
    return _spread(what, [numbers.quantile(share) for share in (0.05, 0.5, 0.95)])


def closeness(what: str, gaps: Distribution) -> str:
    return _spread(what, [None if (gap := gaps.quantile(share)) is None else 1 - gap for share in (0.95, 0.5, 0.05)])


def _spread(what: str, values: list[float | None]) -> str:
    low, middle, high = values
    return f"{what}: none" if middle is None else f"{what}: median {middle:.5g}, 90 % in {low:.5g} to {high:.5g}"
