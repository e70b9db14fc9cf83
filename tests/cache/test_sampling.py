"""Orders of loaders: complete, repeatable, shared among ranks, and local to the disk in windows."""

import numpy as np
import pytest

from cache import UsageError
from cache.sampling import RUNS, RegionSampler


def read(sampler: RegionSampler) -> list[int]:
    return [index for batch in sampler for index in batch]


def test_in_order():
    sampler = RegionSampler(7, 3)
    assert list(sampler) == list(sampler) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(sampler) == 3
    assert list(RegionSampler(7, 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(RegionSampler(0, 3)) == []


def test_shuffled_by_seed_and_epoch():
    sampler = RegionSampler(100, 8, shuffle=True, seed=3)
    first, second = read(sampler), read(sampler)
    assert first != second and sorted(first) == sorted(second) == list(range(100)) != first
    again = RegionSampler(100, 8, shuffle=True, seed=3)
    again.epoch = 1
    assert read(again) == second
    assert read(RegionSampler(100, 8, shuffle=True, seed=4)) != first


@pytest.mark.parametrize("shuffle, window", [(False, None), (True, None), (True, 24)])
@pytest.mark.parametrize("count", [1, 2, 17, 60, 61])
@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_share_the_images(count, shuffle, window, world_size):
    def ranks(**options):
        common = dict(shuffle=shuffle, window=window, disk_order=np.arange(count), world_size=world_size)
        samplers = [RegionSampler(count, 4, rank=rank, **common, **options) for rank in range(world_size)]
        parts = [read(sampler) for sampler in samplers]
        assert [len(s) for s in samplers] == [len(list(s)) for s in samplers]
        return parts

    even = ranks()
    assert len({len(part) for part in even}) == 1 and set(sum(even, [])) == set(range(count))
    assert len(sum(even, [])) < count + world_size
    once = ranks(even_ranks=False)
    assert sorted(sum(once, [])) == list(range(count))
    dropped = ranks(drop_last=True)
    assert len({len(part) for part in dropped}) == 1 and len(dropped[0]) % 4 == 0
    assert len(set(sum(dropped, []))) == len(sum(dropped, []))  # nothing is repeated


def test_a_window_reads_few_stretches_of_the_disk():
    count, window = 10_000, 640
    disk = np.random.default_rng(0).permutation(count)
    position = np.argsort(disk)
    order = read(RegionSampler(count, 64, shuffle=True, window=window, disk_order=disk))
    assert sorted(order) == list(range(count))
    for start in range(0, count, window):
        places = np.sort(position[order[start : start + window]])
        assert np.count_nonzero(np.diff(places) > 1) < RUNS + 1
    assert len(set(np.abs(np.diff(position[order])))) > 1000  # shuffled all the same


def test_the_next_window_is_read_ahead_in_disk_order():
    asked, seen = [], []
    disk = np.arange(1000)
    sampler = RegionSampler(1000, 10, shuffle=True, window=160, disk_order=disk, read_ahead=asked.append)
    for batch in sampler:
        assert set(batch) <= set(sum(asked, []))
        seen += batch
        assert len(sum(asked, [])) <= len(seen) + 160 + 10
    assert sorted(sum(asked, [])) == sorted(seen) == list(range(1000))
    assert all(np.count_nonzero(np.diff(part) != 1) <= RUNS for part in asked)


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(batch_size=0), "batch_size"),
        (dict(rank=2, world_size=2), "rank=2"),
        (dict(seed=-1), "seed"),
        (dict(window=100), "shuffle"),
        (dict(window=7, shuffle=True), "smaller than the 8"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(UsageError, match=said):
        RegionSampler(10, **{"batch_size": 8, **options})
