from __future__ import annotations

import io
import json
import re
import tarfile

import numpy as np
import pytest

from cache.convert import convert
from cache.formats.webdataset import sample_name

KEYS = ["COCO_val2014_000000520430", "sw/39-11", "a.v1.jpg", "a.v2.jpg", "ünï", "../up", "/abs", "line\nkey", "x" * 300]


def samples(path) -> dict[str, dict[str, bytes]]:
    """As webdataset groups members: consecutive ones with the same name up to the first dot of the last part."""
    found: dict[str, dict[str, bytes]] = {}
    last = None
    with tarfile.open(path) as tar:
        for member in tar:
            base, extension = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", member.name, re.DOTALL).groups()
            assert base == last or base not in found, "the members of a sample stand together"
            found.setdefault(base, {})[extension] = tar.extractfile(member).read()
            last = base
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_members(tmp_path, put_store, full, dtype):
    records = {key: full(key, n) for n, key in enumerate(KEYS)}
    report = convert(put_store(list(records.values()), dtype), tmp_path / "t.tar")
    assert report.records == len(KEYS) and report.destination_format == "webdataset"
    found = samples(tmp_path / "t.tar")
    assert len(found) == len(KEYS)
    for sample in found.values():
        about = json.loads(sample.pop("json"))
        record = records[about["key"]]
        assert (about["width"], about["height"]) == (record.width, record.height)
        assert bytes.fromhex(about["source_digest"]) == record.source_digest
        assert sample.keys() == {f"{name}.npy" for name in record.arrays()}
        for name, array in record.arrays().items():
            back = np.load(io.BytesIO(sample[f"{name}.npy"]), allow_pickle=False)
            if name in ("features", "global_features") and dtype != "float32":
                assert np.allclose(back, array, rtol=2**-8, atol=1e-6)
            else:
                assert back.dtype == array.dtype and back.tobytes() == array.tobytes()


def test_names_lead_nowhere_and_stay_distinct():
    names = [sample_name(key) for key in [*KEYS, "a%2Ev1", "a.v1"]]
    assert len(set(names)) == len(names)
    assert all(not name.startswith("/") and ".." not in name and "." not in name for name in names)


def test_equal_stores_give_equal_bytes(tmp_path, put_store, full):
    source = put_store([full("a"), full("b")])
    convert(source, tmp_path / "a.tar")
    convert(source, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_the_library_reads_it(tmp_path, put_store, full):
    webdataset = pytest.importorskip("webdataset")
    record = full("a.v1.jpg", 3)
    convert(put_store([record]), tmp_path / "t.tar")
    (sample,) = webdataset.WebDataset(str(tmp_path / "t.tar"), shardshuffle=False).decode()
    assert sample["json"]["key"] == "a.v1.jpg" and np.array_equal(sample["features.npy"], record.features)
