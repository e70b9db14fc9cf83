import pytest
import torch

from extractor.ranking import best_places


@pytest.mark.parametrize("count", [1, 3, 4, 6, 7, 20])
def test_best_first_and_the_earlier_place_first_among_equals(count):
    values = torch.tensor([2.0, 5.0, 2.0, float("nan"), 9.0, 2.0, -float("inf")])
    expected = [4, 1, 0, 2, 5, 6]
    found = best_places(values, count).tolist()
    assert found == expected[: len(found)] and len(found) >= min(count, 6)


def test_like_a_stable_sort():
    values = torch.randint(0, 50, (2000,), generator=torch.Generator().manual_seed(0)).float()
    order = torch.sort(values, descending=True, stable=True).indices
    for count in (1, 100, 1999, 2000):
        assert torch.equal(best_places(values, count)[:count], order[:count])
