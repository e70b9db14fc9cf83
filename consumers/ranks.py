"""The processes that train together, each with a part of every update's items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together, each with a part of every update's items."""

    rank: int = 0
    count: int = 1

    @classmethod
    def here(cls) -> Ranks:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

    def part(self, rows: np.ndarray) -> np.ndarray:
        """This process's rows of a micro-batch; one at least, for all of them wait for each other's gradients."""
        return rows[self.rank :: self.count] if self.rank < len(rows) else rows[self.rank % len(rows)][None]

    def weight(self, items: int) -> float:
        """What the mean over this process's part counts for, so that the mean over all processes is that over items."""
        return len(range(self.rank, items, self.count)) * self.count / items

    def any(self, said: bool, device: torch.device) -> bool:
        """Whether any process says so."""
        return self.sum([said], device)[0] > 0

    def sum(self, values: Sequence[float], device: torch.device) -> list[float]:
        """The sums of values over all processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(total)
        return total.tolist()
