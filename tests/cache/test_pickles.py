from __future__ import annotations

import builtins
import contextlib
import io
import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from cache import pickles
from cache.pickles import UnsafePickle, load_pickle

VALUES = {
    "f4": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    "big": np.arange(3, dtype=">i4"),
    "ids": np.arange(4),
    "none": np.zeros((0, 5), np.float32),
    "half": np.ones(2, np.float16),
    "scalar": np.int64(7),
    "zero-d": np.array(2.5),
    "text": "ünï",
    "bytes": b"\x00\xff",
    "list": [1, 2.5, None, True, ("a", np.uint8(3))],
    b"bytes key": {},
}


def same(a, b) -> bool:
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_values_come_back(protocol):
    data = pickle.dumps(VALUES, protocol=protocol)
    assert same(load_pickle(data), VALUES)
    assert same(load_pickle(io.BytesIO(data)), VALUES)
    older = data.replace(b"numpy._core", b"numpy.core") if protocol < 4 else data  # as numpy before 2.0 named it
    assert same(load_pickle(older), VALUES)


def test_arrays_of_objects():
    info = np.array({"bbox": np.ones((2, 4), np.float32)}, dtype=object)
    assert same(load_pickle(pickle.dumps(info)), info.item())
    several = np.array([{"a": 1}, None], dtype=object)
    assert load_pickle(pickle.dumps(several)) == [{"a": 1}, None]


class Call:
    def __init__(self, function, *args):
        self.parts = function, args

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize(
    ("evil", "name"),
    [
        (Call(os.system, "touch /tmp/x"), "system"),
        (Call(builtins.eval, "1+1"), "eval"),
        (Call(builtins.getattr, "x", "upper"), "getattr"),
        (Call(np.load, "x"), "numpy.load"),
        ({"features": [Call(os.remove, "x")]}, "remove"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_another_global_is_refused_by_name(evil, name, protocol):
    with pytest.raises(UnsafePickle, match=name):
        load_pickle(pickle.dumps(evil, protocol=protocol))


@pytest.mark.parametrize(
    "data",
    [
        b"cnumpy\nndarray.__reduce__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x11f2py.compile_file\x93.",
        b"Pid\n.",
        b"\x80\x02\x82\x01.",
        b"c_codecs\nencode\n(Vx\nVzip\ntR.",
    ],
)
def test_tricks_are_refused(data):
    with pytest.raises(UnsafePickle):
        load_pickle(data)


def test_arrays_that_lie_about_themselves():
    array = np.zeros((2, 3), np.float32)
    good = pickle.dumps(array, protocol=2)
    for shape in (b"K\x02K\x04", b"K\xffK\x03"):
        with pytest.raises(ValueError, match="not a usable pickle"):
            load_pickle(good.replace(b"K\x02K\x03", shape))
    objects = pickle.dumps(np.array([None, 1], dtype=object), protocol=2)
    with pytest.raises(ValueError, match="not a usable pickle"):
        load_pickle(objects.replace(b"K\x02\x85", b"K\x09\x85"))
    with pytest.raises(ValueError, match="dtype"):
        load_pickle(pickle.dumps(np.zeros(2, "M8[s]"), protocol=2))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # the memo, under an index whose table of lower ones would fill the memory
        b"\x80\x05\x96" + (1 << 45).to_bytes(8, "little") + b".",  # bytearrays of that size,
        b"cbuiltins\nbytearray\n(I1000000000000\ntR.",
        b"\x80\x04B\xff\xff\xff\xff.",  # bytes,
        b"\x80\x04X\xff\xff\xff\xff.",  # text,
        b"\x80\x04\x8b\xff\xff\xff\x7f.",  # a number,
        b"\x80\x04\x95" + (1 << 45).to_bytes(8, "little") + b"N.",  # a frame,
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'd'\ntR.",  # and an array
    ],
)
def test_a_few_bytes_take_no_memory(data):
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            load_pickle(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_become_arrays(protocol):
    content = {
        "probs": torch.arange(6.0).reshape(2, 3), "ids": torch.arange(4), "half": torch.ones(2, dtype=torch.float16),
        "row": torch.arange(6.0, dtype=torch.float64).reshape(2, 3)[1:], "none": torch.zeros(0, 4),
    }  # fmt: skip
    found = load_pickle(pickle.dumps(content, protocol))
    for name, tensor in content.items():
        assert found[name].dtype == tensor.numpy().dtype and np.array_equal(found[name], tensor.numpy())
        assert found[name].shape == tensor.shape


class Stored:
    """What asks for a tensor of such a storage."""

    def __init__(self, raw: bytes):
        self.raw = raw

    def __reduce__(self):
        return torch.storage._load_from_bytes, (self.raw,)


def test_tensors_that_are_none_are_refused():
    for tensor in (torch.arange(6.0).reshape(2, 3).T, torch.zeros(1).expand(1 << 40)):
        with pytest.raises(ValueError, match="not a usable pickle"):
            load_pickle(pickle.dumps(tensor))
    with pytest.raises(ValueError, match="not a usable pickle"):
        load_pickle(pickle.dumps(torch.zeros(2, dtype=torch.float32)).replace(b"\x85", b"\x86"))
    for inner, name in ((pickle.dumps(Stored(b"")), "_load_from_bytes"), (pickle.dumps(os.getcwd), "getcwd")):
        with pytest.raises(UnsafePickle, match=name):
            load_pickle(pickle.dumps(Stored(inner)))
    claimed = io.BytesIO()
    torch.save(torch.zeros(3)._typed_storage(), claimed, _use_new_zipfile_serialization=False)
    cut = claimed.getvalue()[:-4]
    with pytest.raises(ValueError, match="not a usable pickle"):
        load_pickle(pickle.dumps(Stored(cut)))


def test_a_tensor_that_is_asked_for_often_is_in_memory_once():
    raw = io.BytesIO()
    torch.save(torch.zeros(1 << 18)._typed_storage(), raw, _use_new_zipfile_serialization=False)
    head = b"ctorch.storage\n_load_from_bytes\nq\x00"
    asked = b"h\x00h\x01\x85R" * 200
    data = b"\x80\x03](" + head + b"B" + len(raw.getvalue()).to_bytes(4, "little") + raw.getvalue() + b"q\x01" + asked
    tracemalloc.start()
    try:
        assert len(load_pickle(data + b"e.")) == 202
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_parts_that_hold_one_another_are_read_once():
    content = {"a": np.ones(3)}
    for _ in range(60):
        content = {"a": content, "b": content}
    found = load_pickle(pickle.dumps(content))
    assert found["a"] is found["b"]
    pair = (np.ones(2), 1)
    first, second = load_pickle(pickle.dumps([pair, pair]))
    assert first is second and type(first) is tuple and first[0].tolist() == [1, 1]


@pytest.mark.parametrize("make", [lambda x: [x, x], lambda x: (x, x), lambda x: [x] * 3000, lambda x: (x, [x], x)])
def test_lists_that_are_more_than_their_bytes_are_refused(make):
    """An array of them, their text or their hash would take all the memory, or all the time there is."""
    content = 1.0
    for _ in range(60):
        content = make(content)
    with pytest.raises(ValueError, match="hold one another"):
        load_pickle(pickle.dumps(content))


def test_a_circle_is_refused():
    circle = []
    circle.append(circle)
    with pytest.raises(ValueError, match="not a usable pickle"):
        load_pickle(pickle.dumps(circle))


@pytest.mark.parametrize("build", [b"}h\x00Ns.", b"\x8f(h\x00\x90.", b"(h\x00\x91."])
def test_tuples_are_never_hashed(build):
    """60 of them, each twice in the next: as a key, or in a set, that would take for ever."""
    tower = b"\x80\x04)\x94" + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(60))
    with pytest.raises(ValueError, match="unhashable"):
        load_pickle(tower + build.replace(b"h\x00", b"h\x3c"))


@pytest.mark.parametrize(
    ("stand_in", "name"),
    [
        (b"c_codecs\nencode\n", "function.__setstate__"),
        (b"cnumpy.core.multiarray\nscalar\n", "function.__setstate__"),
        (b"cnumpy\nndarray\n", "type.__setstate__"),
        (b"ccollections\nOrderedDict\n)R", "OrderedDict.__setstate__"),
    ],
)
def test_attributes_of_what_stands_in_cannot_be_written(stand_in, name):
    write = b"N}X\x0c\x00\x00\x00__defaults__X\x05\x00\x00\x00wrong\x85s\x86b."
    before = pickles._encode.__defaults__, vars(pickles._Array).copy()
    with pytest.raises(UnsafePickle, match=name):
        load_pickle(b"\x80\x02" + stand_in + write)
    assert (pickles._encode.__defaults__, vars(pickles._Array)) == before


def test_a_disk_that_fails_is_not_taken_for_a_bad_pickle():
    class Failing(io.BytesIO):
        def readline(self, *_):
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        load_pickle(Failing(b"I1\n."))


def test_bytes_that_are_no_pickle_raise_one_kind_of_error():
    data = pickle.dumps(VALUES)
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(data[: rng.integers(len(data))] if rng.random() < 0.3 else data)
        for place in rng.integers(0, max(len(damaged), 1), 3):
            damaged[place : place + 1] = bytes([rng.integers(256)])
        try:
            load_pickle(bytes(damaged))
        except (ValueError, UnsafePickle):
            pass
