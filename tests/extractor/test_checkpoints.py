import codecs
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cache import InputNotFound, WeightsError, pickles
from extractor.checkpoints import read_checkpoint

STATE = {
    "a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "a.bias": np.array([1.5, -2.0], np.float32),
    "b": np.array(3, np.float32),
}


def tensors():
    return {name: torch.from_numpy(array.copy()) for name, array in STATE.items()}


def write_safetensors(path):
    save_file(tensors(), str(path))


def write_torch(path):
    torch.save({"model": OrderedDict(tensors()), "optimizer": {"state": {}}, "iteration": 7}, path)


def write_legacy_torch(path):
    torch.save(tensors(), path, _use_new_zipfile_serialization=False)


def pickled(protocol):
    def write(path):
        content = {"model": STATE, "__author__": "someone", "matching_heuristics": True}
        path.write_bytes(pickle.dumps(content, protocol))

    return write


def write_python2(path):
    """What Python 2 wrote: byte strings, read back as text."""
    state = (1, (2,), np.dtype("<f4"), False, STATE["a.bias"].tobytes().decode("latin1"))
    head = pickle.dumps({"model": {"a.bias": _Python2Array(state)}}, protocol=2)
    path.write_bytes(head)


class _Python2Array:
    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return np.empty(0).__reduce__()[0], (np.ndarray, (0,), "b"), self.state


@pytest.mark.parametrize(
    "write",
    [write_safetensors, write_torch, write_legacy_torch, *(pickled(p) for p in (0, 2, 3, 4, 5))],
)
@pytest.mark.parametrize("name", ["checkpoint", "other.pkl", "other.safetensors"])
def test_every_format_is_read_whatever_its_name(tmp_path, write, name):
    write(tmp_path / name)
    found = read_checkpoint(tmp_path / name)
    assert found.keys() == STATE.keys()
    for key, tensor in found.items():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), STATE[key])


def test_pickles_of_python_2_are_read(tmp_path):
    write_python2(tmp_path / "old.pkl")
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "old.pkl")["a.bias"].numpy(), STATE["a.bias"])


@pytest.mark.parametrize("start", b"\x80(\x90")
def test_a_safetensors_file_may_begin_as_a_pickle_does(tmp_path, start):
    """It begins with the length of its header."""
    path, padding = tmp_path / "x.safetensors", 0
    while padding < 300:
        save_file({"x": torch.ones(2)}, str(path), {"padding": "x" * padding})
        if path.read_bytes()[0] == start:
            break
        padding += 8
    assert path.read_bytes()[0] == start
    assert read_checkpoint(path)["x"].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [">f4", "<f8", "<f2", "<i8"])
def test_other_number_formats_become_float32(tmp_path, dtype):
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"x": array}, 2))
    found = read_checkpoint(tmp_path / "x.pkl")["x"]
    assert found.dtype == torch.float32 and found.tolist() == [[0, 1, 2], [3, 4, 5]]


class _Touch:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def malicious_pickle(path, victim, protocol=2):
    path.write_bytes(pickle.dumps({"model": {"a": _Touch(victim)}}, protocol))


def malicious_torch(path, victim):
    torch.save({"model": {"a": _Touch(victim)}}, path)


def malicious_legacy_torch(path, victim):
    torch.save({"model": {"a": _Touch(victim)}}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [malicious_pickle, malicious_torch, malicious_legacy_torch])
def test_code_in_a_checkpoint_never_runs(tmp_path, write):
    write(tmp_path / "evil.pkl", tmp_path / "victim")
    with pytest.raises(WeightsError, match=r"evil.pkl asks to run \w*io\.open"):
        read_checkpoint(tmp_path / "evil.pkl")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'touch victim'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x14ndarray.__subclasses\x93.",
    ],
)
def test_pickled_calls_are_refused_by_name(tmp_path, payload):
    (tmp_path / "x.pkl").write_bytes(payload)
    with pytest.raises(WeightsError, match="x.pkl asks to run"):
        read_checkpoint(tmp_path / "x.pkl")


def test_allowed_names_cannot_be_turned_against_the_reader(tmp_path):
    cases = {
        "objects": pickle.dumps({"a": np.array([object, 1], dtype=object)}, 2),
        "huge": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'd'\ntR.",
        "codec": b"c_codecs\nencode\n(S'x'\nS'zip'\ntR.",
        "memo": b"\x80\x02Nr\xff\xff\xff\x7f.",  # an index that a table of all lower ones would fill the memory for
        "length": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 50) + b"x",
        "nested": b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".",
        "shape": pickle.dumps({"a": np.zeros(4, np.float32)}, 2).replace(b"K\x04", b"K\x09"),
        "nothing": pickle.dumps({"model": {}}),
        "list": pickle.dumps([1, 2]),
    }
    for name, payload in cases.items():
        (tmp_path / name).write_bytes(payload)
        with pytest.raises(WeightsError, match=name):
            read_checkpoint(tmp_path / name)


@pytest.mark.parametrize("write", [write_safetensors, write_torch, write_legacy_torch, pickled(2), pickled(5)])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_cut_short_is_refused(tmp_path, write, share):
    write(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match="cut"):
        read_checkpoint(tmp_path / "cut")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>404", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\x89PNG\r\n\x1a\n", "neither"),
        (struct.pack("<Q", 1 << 40) + b"{", "neither"),
    ],
)
def test_other_files_are_refused_for_what_they_are(tmp_path, content, words):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(WeightsError, match=words):
        read_checkpoint(tmp_path / "x")


def test_a_zip_that_is_no_checkpoint_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr("data.txt", codecs.encode("hello", "rot13"))
    with pytest.raises(WeightsError, match="cannot be read"):
        read_checkpoint(tmp_path / "x")


def test_files_that_claim_more_than_they_hold_are_not_unpacked(tmp_path):
    write_torch(tmp_path / "plain")
    with zipfile.ZipFile(tmp_path / "plain") as plain, zipfile.ZipFile(tmp_path / "bomb", "w") as bomb:
        for member in plain.infolist():
            data = plain.read(member) + (b"\0" * (1 << 24) if "/data/" in member.filename else b"")
            bomb.writestr(member.filename, data, zipfile.ZIP_DEFLATED)
    with pytest.raises(WeightsError, match="bomb unpacks to more"):
        read_checkpoint(tmp_path / "bomb")
    torch.save({"a": torch.zeros(1, dtype=torch.float16).expand(1 << 50)}, tmp_path / "expanded")
    with pytest.raises(WeightsError, match="expanded: a is not a plain tensor"):
        read_checkpoint(tmp_path / "expanded")


def test_tensors_of_other_kinds_are_refused_by_name(tmp_path, odd_tensors):
    for kind, tensor in odd_tensors.items():
        torch.save({"model": {"good": torch.ones(2), kind: tensor}}, tmp_path / "x.pth")
        with pytest.raises(WeightsError, match=rf"x\.pth: {kind} is not a plain tensor"):
            read_checkpoint(tmp_path / "x.pth")


def test_parts_that_hold_one_another_take_no_time(tmp_path):
    content = {"x": 1}
    for _ in range(4):
        content = {str(i): content for i in range(1000)}
    (tmp_path / "x").write_bytes(pickle.dumps(content))
    with pytest.raises(WeightsError, match="no tensors"):
        read_checkpoint(tmp_path / "x")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputNotFound, match="gone.pth"):
        read_checkpoint(tmp_path / "gone.pth")


def test_a_pickle_leaves_nothing_behind_in_the_process(tmp_path):
    """It may write attributes on whatever it is given, here the default encoding of a function."""
    before = pickles._encode.__defaults__
    write = b"N}X\x0c\x00\x00\x00__defaults__X\x05\x00\x00\x00wrong\x85s\x86b."
    (tmp_path / "crafted.pkl").write_bytes(b"\x80\x02c_codecs\nencode\n" + write)
    with pytest.raises(WeightsError, match="crafted.pkl asks to run function.__setstate__"):
        read_checkpoint(tmp_path / "crafted.pkl")
    assert pickles._encode.__defaults__ == before
