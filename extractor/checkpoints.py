"""Read checkpoint files of every format the published detectors come in, without running anything they contain.

What a file is, its first bytes decide, never its name. Tensors come out in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cache import InputNotFound, WeightsError
from cache.pickles import UnsafePickle, load_pickle
from cache.tensor_files import check_plain, check_unpacked, is_index, runs_code, tensors_in, unreadable

_ZIP = b"PK\x03\x04"
_LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # a pickled magic number, which torch wrote before 1.6
_PARTS = ("model", "state_dict")  # where training frameworks put the network, beside optimizer and schedule


def read_checkpoint(path: Path, part: str = "") -> dict[str, Tensor]:
    """The network's tensors in a file, f32 on the CPU, under the names they have there.

    Reads safetensors, indexes of those in several files, torch files (.pth, .bin, both layouts) and pickles of numpy
    arrays (detectron2's .pkl). A "model" or "state_dict" in the file is taken for the whole; whatever is beside it is
    not.

    Args:
        part: regular expression for how the names begin of those that are wanted; others of safetensors are not read.

    Raises:
        InputNotFound: there is no such file.
        WeightsError: another format, a damaged file, or one that asks for code to be run; names the code.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputNotFound(f"the checkpoint {path} cannot be read: {error.strerror or error}") from error
    read = _reader(path, head, part)
    try:
        content = read(path)
    except WeightsError:
        raise
    except UnsafePickle as error:
        raise runs_code(path, error.name) from error
    except (Exception, MemoryError) as error:  # a damaged file can fail a parser in any way
        raise unreadable(path, error) from error
    return _tensors(path, content, re.compile(part))


def _is_safetensors(head: bytes) -> bool:
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 100 << 20


def _reader(path: Path, head: bytes, part: str) -> Callable[[Path], Any]:
    if head.startswith((_ZIP, _LEGACY_TORCH)):
        return _read_torch
    # before the pickles: the length that safetensors begin with may look like the start of one
    if _is_safetensors(head) or is_index(path):
        return partial(_read_safetensors, part=part)
    if head.startswith(b"\x80") or re.match(rb"[(}c]", head):
        return _read_pickle
    if not head:
        raise WeightsError(f"{path} is empty: fetch or copy it again")
    if head.lstrip()[:1] == b"<":
        raise WeightsError(f"{path} is a web page, not a checkpoint: its address no longer serves the file")
    if head.startswith(b"version https://git-lfs"):
        raise WeightsError(f"{path} is a Git LFS pointer, not a checkpoint: run `git lfs pull` where it came from")
    raise WeightsError(f"{path} is neither a safetensors, nor a torch, nor a detectron2 pickle checkpoint")


def _read_torch(path: Path) -> Any:
    check_unpacked(path)
    with path.open("rb") as file:  # given the name, torch would go by its ending
        return torch.load(file, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path, part: str) -> dict[str, Tensor]:
    from safetensors import safe_open

    tensors, wanted = {}, re.compile(part)
    for file, names in (tensors_in(path, part) if is_index(path) else {path: None}).items():
        with safe_open(file, framework="pt") as opened:
            names = filter(wanted.match, opened.keys()) if names is None else names
            tensors |= {name: opened.get_tensor(name) for name in names}
    return tensors


def _read_pickle(path: Path) -> Any:
    with path.open("rb") as file:
        return load_pickle(file)


def _tensors(path: Path, content: Any, wanted: re.Pattern) -> dict[str, Tensor]:
    for part in _PARTS:
        if isinstance(content, Mapping) and isinstance(content.get(part), Mapping):
            content = content[part]
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not named tensors")
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        if not wanted.match(str(name)):
            continue
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fiub":
            value = torch.from_numpy(np.array(value, np.float32))
        if isinstance(value, Tensor):
            check_plain(path, name, value)
            tensors[str(name)] = value.float()
    if not tensors:
        raise WeightsError(f"{path} holds no tensors{wanted.pattern and f' whose names begin as {wanted.pattern}'}")
    return tensors
