"""In which order a loader reads its images: batches of indices, the same on every run for one seed and epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from .errors import UsageError, require_whole

RUNS = 16  # stretches of the disk that make up a window


class RegionSampler(Sampler[list[int]]):
    """Batches of indices into a list of images, for one of several ranks.

    Each pass over it is one epoch: it counts `epoch` on by itself, so that the next pass has another order.

    Args:
        count: number of images.
        batch_size: images in a batch; the last batch may have fewer.
        shuffle: a new random order each epoch, else 0, 1, 2, ...
        seed: of the order, together with the epoch. All ranks must use the same.
        window: for stores that are larger than memory: shuffle only among so many images at a time. A window is made
            of RUNS random stretches of the disk, so that it can be read in the order of the disk ahead of its use.
        disk_order: i64[count], the indices in the order of the disk; needed with `window`.
        read_ahead: with `window`, called with the indices that will be needed one window later, in disk order; else
            with those of the next batch.
        drop_last: leave out what does not fill a batch on every rank.
        rank, world_size: this process, and the number of processes that share the images.
        even_ranks: every rank gets equally many images, as distributed training needs: some images are repeated, or
            with `drop_last` left out. If False, every image is read once, by one rank, as evaluation needs.

    Attributes:
        epoch: of the next pass.

    Raises:
        UsageError
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        window: int | None = None,
        disk_order: np.ndarray | None = None,
        read_ahead: Callable[[Sequence[int]], None] | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        even_ranks: bool = True,
    ):
        for name, value, least in (
            ("batch_size", batch_size, 1), ("seed", seed, 0), ("world_size", world_size, 1), ("rank", rank, 0),
            *((("window", window, 1),) if window is not None else ()),
        ):  # fmt: skip
            require_whole(name, value, least)
        if rank >= world_size:
            raise UsageError(f"rank={rank} is not one of the {world_size} ranks 0 to {world_size - 1}")
        if window is not None and not shuffle:
            raise UsageError("window is for shuffle=True")
        if window is not None and window < batch_size * world_size:
            raise UsageError(f"window={window} is smaller than the {batch_size * world_size} images of one step")
        self.count, self.batch_size, self.shuffle, self.seed = count, batch_size, shuffle, seed
        self.window, self.drop_last, self.even_ranks = window, drop_last, even_ranks
        self.rank, self.world_size = rank, world_size
        self.epoch = 0
        self._disk_order, self._read_ahead = disk_order, read_ahead

    def _share(self) -> int:
        """Number of images that this rank reads."""
        if self.even_ranks:
            return self.count // self.world_size if self.drop_last else -(-self.count // self.world_size)
        return len(range(self.rank, self.count, self.world_size))

    def __len__(self) -> int:
        share = self._share()
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        coarse = self._coarse_order(epoch)
        coarse = np.resize(coarse, self._share() * self.world_size) if self.even_ranks else coarse
        coarse = coarse[self.rank :: self.world_size]
        order, ahead, size = coarse, None, self.batch_size
        if self.window is not None:
            size = self.window // self.world_size
            order = self._shuffle_windows(coarse, size, epoch)
        if self._read_ahead is not None:
            self._read_ahead(coarse[:size].tolist())
            ahead = coarse[size:]
        for batch in range(len(self)):
            chosen = slice(batch * self.batch_size, (batch + 1) * self.batch_size)
            if ahead is not None and len(ahead[chosen]):
                self._read_ahead(ahead[chosen].tolist())
            yield order[chosen].tolist()

    def _coarse_order(self, epoch: int) -> np.ndarray:
        """Of all ranks; with windows not shuffled yet inside of the stretches of the disk."""
        if not self.shuffle:
            return np.arange(self.count)
        rng = np.random.default_rng([self.seed, epoch])
        if self.window is None:
            return rng.permutation(self.count)
        stretch = np.arange(self.count) // max(1, self.window // RUNS)
        shuffled = rng.permutation(int(stretch[-1]) + 1 if self.count else 0)
        return self._disk_order[np.argsort(shuffled[stretch], kind="stable")]

    def _shuffle_windows(self, coarse: np.ndarray, size: int, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, epoch, self.rank + 1])
        return coarse[np.argsort(np.arange(len(coarse)) // size + rng.random(len(coarse)))]
