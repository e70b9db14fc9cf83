"""Stores for training loops: a torch dataset, and a loader of padded batches.

    for batch in RegionLoader("coco.roi", keys, 64, shuffle=True, num_workers=2):
        model(batch.features, batch.locations, batch.mask)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from .batch import RegionBatch
from .collate import Collation, collate_regions
from .errors import DataError, RoivaultError, UsageError, require_one_of, require_whole
from .lending import Slabs
from .lookup import list_of_keys
from .mapped import BoxesAndFeatures, MappedRecords
from .regions import Regions
from .sampling import RegionSampler
from .store import MISSING, READ, RegionStore, Target, open_store

__all__ = ["RegionBatch", "RegionDataset", "RegionLoader", "collate_regions"]


class RegionDataset(Dataset[Regions]):
    """A list of images of a store, as a map-style dataset: index in, `Regions` out.

    It can be pickled; a process that was not forked opens the stores anew.

    Args:
        target: what `open_store` takes, or a store.
        keys: of the images, in the order of the indices; a key may occur more than once. None: all records, in the
            order of the disk.
        missing: "raise" when there are keys without a record, or "skip" to leave them out.
        read: how records are read, "auto", "mmap" or "pread": see `RegionStore.get_many`.

    Attributes:
        store, keys: as they are used.

    Raises:
        MissingKeys: names all of them.
        StoreNotFound, StoreDamaged, StoreMismatch, UsageError
    """

    def __init__(
        self,
        target: Target | RegionStore,
        keys: Sequence[str] | None = None,
        *,
        missing: str = "raise",
        read: str = "auto",
    ):
        require_one_of("missing", missing, MISSING)
        require_one_of("read", read, READ)
        self.store = target if isinstance(target, RegionStore) else open_store(target)
        self.keys = list(self.store.keys()) if keys is None else list_of_keys(keys)
        self.read = read
        if keys is not None:
            lost = self.store.places(self.keys)[:, 0] < 0
            if lost.any():
                if missing == "raise":
                    self.store.get_many([self.keys[i] for i in np.flatnonzero(lost)])  # raises, naming them
                self.keys = [self.keys[i] for i in np.flatnonzero(~lost)]
        self._mapped = MappedRecords(self.store, self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Regions:
        """Raises: IndexError, CorruptRecord, StoreDamaged, DiskError."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Regions]:
        """Several at once: one lookup, and parallel reads. torch's own loaders call this."""
        return self.store.get_many([self.keys[i] for i in indices], read=self.read)

    def boxes_and_features(self, indices: Sequence[int]) -> BoxesAndFeatures:
        """What batches are made of, for `collate_regions`: faster than all fields."""
        if self.store.verify == "always" or not self.store.reads_mapped(self.read):
            return BoxesAndFeatures.of(self.__getitems__(indices))
        return self._mapped.get_many(indices)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask the system to read images ahead."""
        self.store.prefetch([self.keys[i] for i in indices])

    def disk_order(self) -> np.ndarray:
        """The indices in the order in which the records lie on the disk, i64[len]."""
        return np.lexsort(self.store.places(self.keys).T[::-1])


class RegionLoader(DataLoader):
    """Padded batches of a store. Each pass over it is one epoch, in a new order with `shuffle`.

    The batches do not depend on the number of workers, nor on how these are started. An error in a worker arrives as
    what it is.

    Args:
        target, keys, missing, read: see `RegionDataset`; `target` may also be a `RegionDataset`, without the others.
        batch_size: images in a batch; the last one may have fewer.
        shuffle, seed, window, drop_last, even_ranks: see `RegionSampler`.
        rank, world_size: of this process among those that share the images; default those of torch.distributed where
            it is initialised, else one process alone.
        num_workers, multiprocessing_context, persistent_workers, prefetch_factor, timeout: see torch's DataLoader.
        pin_memory: batches in page-locked memory, for non-blocking copies to a GPU.
        reuse_buffers: without workers, write each batch over the one before, which saves the cost of fresh memory: a
            batch is valid only until the next one is asked for. Workers write over batches that are no longer used
            anyhow: there it changes nothing.
        collation: max_regions, pad_to_max, num_locations, global_region, normalize, dtype: see `collate_regions`.

    Attributes:
        regions: the `RegionDataset`.

    Raises:
        MissingKeys, StoreNotFound, StoreDamaged, StoreMismatch, UsageError
        DataError: no keys.
    """

    def __init__(
        self,
        target: Target | RegionStore | RegionDataset,
        keys: Sequence[str] | None = None,
        batch_size: int = 64,
        *,
        shuffle: bool = False,
        seed: int = 0,
        window: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        even_ranks: bool = True,
        missing: str = "raise",
        read: str = "auto",
        num_workers: int = 0,
        multiprocessing_context: Any = None,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        pin_memory: bool = False,
        reuse_buffers: bool = False,
        **collation: Any,
    ):
        if unknown := collation.keys() - Collation.__dataclass_fields__.keys():
            raise UsageError(
                f"RegionLoader has no option {', '.join(sorted(unknown))}; those of batches are "
                f"{', '.join(Collation.__dataclass_fields__)}"
            )
        options = Collation(**collation)
        if (rank is None) != (world_size is None):
            raise UsageError("give both rank and world_size, or none of them")
        if rank is None:
            rank, world_size = _own_rank()
        if not isinstance(target, RegionDataset):
            target = RegionDataset(target, keys, missing=missing, read=read)
        elif keys is not None:
            raise UsageError("a RegionDataset has its own keys")
        if not len(target):
            raise DataError("there are no images to load: the list of keys is empty, or no key has a record")
        self.regions = target
        waits = target.store.is_remote and not num_workers  # for each batch; workers are ahead anyhow
        read_ahead = target.prefetch if waits or window is not None else None
        sampler = RegionSampler(
            len(target), batch_size, shuffle=shuffle, seed=seed, window=window, drop_last=drop_last, rank=rank,
            world_size=world_size, even_ranks=even_ranks, read_ahead=read_ahead,
            disk_order=target.disk_order() if window is not None else None,
        )  # fmt: skip
        pinned = pin_memory and not num_workers and torch.cuda.is_available()
        for name, value, least in (("num_workers", num_workers, 0), ("prefetch_factor", prefetch_factor or 1, 1)):
            require_whole(name, value, least)
        # Of each worker are at most: the batches that it is ahead, and one of now and one of just before.
        slabs = (prefetch_factor or 2) + 2
        try:
            super().__init__(
                _Batches(target, options, reuse_buffers, pinned, slabs), batch_sampler=sampler, collate_fn=_as_it_is,
                num_workers=num_workers, pin_memory=pin_memory, multiprocessing_context=multiprocessing_context,
                persistent_workers=persistent_workers, prefetch_factor=prefetch_factor, timeout=timeout,
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise UsageError(f"torch's DataLoader refuses the options of the workers: {error}") from None

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next pass is, to resume training; without this, passes count on from 0."""
        require_whole("epoch", epoch, 0)
        self.batch_sampler.epoch = epoch

    def __iter__(self) -> Iterator[RegionBatch]:
        mapped = deque(maxlen=self.num_workers * self.dataset.most_slabs)  # to be found again, not mapped again
        for batch in super().__iter__():
            if isinstance(batch, RoivaultError):
                raise batch
            mapped.append(batch._slab)
            yield batch


class _Batches(Dataset[RegionBatch]):
    """Lists of indices in, batches out.

    Args:
        reuse: write over the batch before; not in a worker.
        slabs: number of pieces of memory that a worker lends batches in.
    """

    def __init__(self, regions: RegionDataset, collation: Collation, reuse: bool, pinned: bool, slabs: int):
        self.regions, self.collation, self.reuse, self.pinned = regions, collation, reuse, pinned
        self.most_slabs, self._slabs = slabs, Slabs(slabs)
        self._earlier: RegionBatch | None = None

    def __len__(self) -> int:
        return len(self.regions)

    def __getitems__(self, indices: Sequence[int]) -> RegionBatch | RoivaultError:
        if get_worker_info() is not None:
            try:
                return self.collation(self.regions.boxes_and_features(indices), slabs=self._slabs)
            except RoivaultError as error:
                return error  # torch would make it a RuntimeError
        batch = self.collation(self.regions.boxes_and_features(indices), self._earlier, self.pinned)
        if self.reuse:
            self._earlier = batch
        return batch


def _as_it_is(batch: Any) -> Any:
    return batch


def _own_rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
