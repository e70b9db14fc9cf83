import numpy as np
import pytest

from consumers.ranks import Ranks


def test_each_process_has_a_part_of_the_smallest_batch():
    rows = np.arange(10)
    for count in (1, 2, 3, 4):
        parts = [Ranks(rank, count).part(rows) for rank in range(count)]
        assert sorted(np.concatenate(parts)) == list(rows)
    assert [Ranks(rank, 4).part(rows[:3]).tolist() for rank in range(4)] == [[0], [1], [2], [0]]


def test_means_of_unequal_parts_count_by_their_size():
    for count in (1, 2, 3, 4):
        for items in range(1, 10):
            ranks = [Ranks(rank, count) for rank in range(count)]
            values = np.arange(items) ** 2
            means = [one.part(values).mean() * one.weight(items) for one in ranks]
            assert np.mean(means) == pytest.approx(values.mean())
