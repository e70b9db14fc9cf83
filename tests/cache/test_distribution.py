import numpy as np
import pytest

from cache.distribution import Distribution


def test_extremes_mean_and_quantiles():
    numbers = Distribution()
    values = np.random.default_rng(0).lognormal(size=10_000)
    for part in np.array_split(values, 7):
        numbers.add(part)
    assert numbers.count == 10_000 and (numbers.low, numbers.high) == (values.min(), values.max())
    assert numbers.mean == pytest.approx(values.mean())
    for share in (0.01, 0.5, 0.95):
        assert numbers.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.05)


def test_whole_numbers_are_exact():
    numbers = Distribution(whole=True)
    numbers.add(np.array([0, 36, 36, 100]))
    assert dict(numbers.bins) == {0: 1, 36: 2, 100: 1} and numbers.quantile(0.5) == 36
    assert numbers.edges(36) == (35.5, 36.5)


def test_every_number_lies_in_its_bin():
    values = np.array([-1e30, -3.7, -1e-9, 0.0, 1e-25, 0.3, 1.0, 65504.0, 1e25])
    for whole, numbers in ((False, values), (True, np.array([0.0, 7, 4095, 4096, 1e9]))):
        for value in numbers:
            one = Distribution(whole)
            one.add(value)
            low, high = one.edges(next(iter(one.bins)))
            assert low <= value <= high or abs(value) > 1e18 or abs(value) < 1e-18


def test_memory_does_not_grow():
    numbers = Distribution()
    rng = np.random.default_rng(0)
    for _ in range(50):
        numbers.add(np.exp(rng.normal(0, 60, 1000)) * rng.choice([-1, 1], 1000))
    assert len(numbers.bins) <= 2 * 2 * 64 * 16 + 1


def test_nothing_and_what_is_not_finite():
    numbers = Distribution()
    numbers.add(np.array([np.nan, np.inf]))
    assert numbers.count == 0 and numbers.mean is None and numbers.quantile(0.5) is None
    assert numbers.to_dict()["max"] is None
