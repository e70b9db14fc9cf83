"""The reader that docs/format.md shows, run on stores: another program can be written from that page."""

import re
from pathlib import Path

import numpy as np
import pytest

from cache import Failure, StoreWriter, open_store

ROOT = Path(__file__).resolve().parents[2]
FORMAT_1 = ROOT / "tests" / "data" / "cache" / "format-1.roi"


@pytest.fixture(name="read", scope="module")
def made_from_the_page():
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "format.md").read_text("utf-8"), re.M | re.S)
    assert {line.split()[1] for line in re.findall(r"^(?:import|from) .*", code, re.M)} == {"json", "struct"}
    names = {}
    exec(code, names)
    return names["read"]


def assert_same(found, regions):
    arrays = regions.arrays()
    if regions.source_digest:
        arrays["source_digest"] = np.frombuffer(regions.source_digest, np.uint8)
    assert found.keys() == {"width", "height", *arrays}
    assert (found["width"], found["height"]) == (((), (regions.width,)), ((), (regions.height,)))
    for name, array in arrays.items():
        bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        assert found[name] == (array.shape, tuple(bits.ravel().tolist()))


def test_it_reads_the_store_that_is_kept_for_ever(read):
    store = open_store(FORMAT_1)
    assert len(store) > 1
    for key in store:
        assert_same(read(FORMAT_1, key), store[key])
    for failure in store.failures():
        assert read(FORMAT_1, failure.key) is None
    assert read(FORMAT_1, "nowhere") is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_it_takes_the_state_that_holds(tmp_path, make, read, dtype):
    old, new = (make("a", n=n) for n in (3, 5))
    with StoreWriter(tmp_path / "s.roi", dtype) as writer:
        writer.write([old, make("b")], [Failure("c", "missing", "was not there")])
        writer.seal()
        writer.write([new, make("c")], [Failure("b", "missing", "has gone")], on_duplicate="replace")
    store = open_store(tmp_path / "s.roi")
    assert len(store["a"]) == 5 and len(store) == 2
    for key in store:
        assert_same(read(tmp_path / "s.roi", key), store[key])
    assert read(tmp_path / "s.roi", "b") is None
