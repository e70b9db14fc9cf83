import pytest

from cache import UsageError
from cache.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 << 30), ("500MB", 500_000_000), (" 1.5 kib ", 1536), ("2t", 2 * 10**12), (4096, 4096), ("7B", 7)],
)
def test_numbers_of_bytes(text, size):
    assert parse_bytes("--size", text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1e3", "I", "8 PB", "0.4", "GiB", "nan", "9" * 30, "9" * 400, "9" * 5000]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="--size .* is not a size; give for instance 8GiB"):
        parse_bytes("--size", text)
