"""Pictures that look alike: hard negatives of retrieval, from the features in the store."""

from __future__ import annotations

import numpy as np
import torch

from .data import TaskData

POOL = 20  # nearest neighbours among which one is drawn
CHUNK = 512


class HardNegatives:
    """The nearest neighbours of each picture, by the Euclidean distance of their mean region features.

    Args:
        data: whose pictures; each is read once.
        pool: how many neighbours are kept.

    Attributes:
        neighbours: i64 [pictures, pool], nearest first, never the picture itself; places in `data.keys`.
    """

    def __init__(self, data: TaskData, pool: int = POOL):
        count = len(data.keys)
        means = torch.empty(count, data.config.feature_dim)
        for start in range(0, count, CHUNK):
            some = data.store.get_many(data.keys[start : start + CHUNK])
            for place, one in enumerate(some, start):
                mean = one.features.astype(np.float32).mean(0) if len(one) else np.zeros(means.shape[1], np.float32)
                means[place] = torch.from_numpy(mean)
        pool = min(pool, count - 1)
        found = []
        for start in range(0, count, CHUNK):
            distances = torch.cdist(means[start : start + CHUNK], means)
            rows = torch.arange(len(distances))
            distances[rows, rows + start] = torch.inf
            found.append(distances.topk(pool, largest=False).indices)
        self.neighbours = torch.cat(found).numpy()

    def pick(self, image: int, rng: np.random.Generator) -> int | None:
        """One of the neighbours of a picture, None where it is the only one."""
        row = self.neighbours[image]
        return int(row[rng.integers(len(row))]) if len(row) else None
