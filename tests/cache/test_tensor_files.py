import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from cache import WeightsError
from cache.tensor_files import INDEX, is_index, part_sha256, read_header, tensors_in

TENSORS = {"a.x": np.arange(6, dtype=np.float32).reshape(2, 3), "a.y": np.zeros(3, np.float16), "b.x": np.ones(2)}


@pytest.fixture
def whole(tmp_path):
    save_file(TENSORS, tmp_path / "whole.safetensors")
    return tmp_path / "whole.safetensors"


@pytest.fixture
def index(tmp_path):
    files = {"a.x": "model-2.safetensors", "a.y": "model-1.safetensors", "b.x": "model-1.safetensors"}
    for file in set(files.values()):
        save_file({name: TENSORS[name] for name in files if files[name] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return tmp_path / INDEX


def test_parts_are_found_in_one_file_and_in_several(whole, index):
    assert not is_index(whole) and is_index(index)
    assert tensors_in(whole) == {whole: ["a.x", "a.y", "b.x"]} and tensors_in(whole, "a") == {whole: ["a.x", "a.y"]}
    one, two = index.with_name("model-1.safetensors"), index.with_name("model-2.safetensors")
    assert tensors_in(index) == {one: ["a.y", "b.x"], two: ["a.x"]}
    assert tensors_in(index, r"b\.") == {one: ["b.x"]}


def test_the_digest_is_of_the_part_alone(whole, index, tmp_path):
    digest = part_sha256(whole, r"a\.")
    assert part_sha256(index, r"a\.") == digest != part_sha256(whole, "")
    for changed, same in (({"b.x": np.zeros(2)}, True), ({"a.y": np.zeros(3, np.float32)}, False)):
        save_file(TENSORS | changed, tmp_path / "other.safetensors")
        assert (part_sha256(tmp_path / "other.safetensors", r"a\.") == digest) == same
    save_file(TENSORS | {"a.x": TENSORS["a.x"].reshape(3, 2)}, tmp_path / "other.safetensors")
    assert part_sha256(tmp_path / "other.safetensors", r"a\.") != digest
    with pytest.raises(WeightsError, match="no tensors"):
        part_sha256(whole, "c")


@pytest.mark.parametrize("offsets", [[0, 10**9], [-4, 4], [8, 0], ["0", 4], [0], None])
def test_headers_that_lie_are_refused(tmp_path, offsets):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(WeightsError, match="damaged or cut short"):
        part_sha256(path, "a")


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\2\0\0\0\0\0\0\0{}", b"\4\0\0\0\0\0\0\0{[[[", b"PK\3\4" * 9])
def test_what_is_no_safetensors_file_has_no_header(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert read_header(tmp_path / "x") == {}
    with pytest.raises(WeightsError):
        part_sha256(tmp_path / "x", "a")
