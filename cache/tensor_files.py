"""Checkpoints: of safetensors files, one or several that an index names, which tensors lie where, and a digest of some
of them; of torch's files, what is not to be believed.

Needs no tensor library. What headers and indexes say is held against the files, and never leads out of their folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"  # of a checkpoint that transformers keeps in several files
IMAGE_SIDE = r"(model\.)?vision_(model|tower)\."  # how the names of those begin in models that write about pictures
_MOST_HEADER = 100 << 20  # as safetensors has it
_FILE_NAME = re.compile(r"\w[\w.-]*\.safetensors")
_BLOCK = 1 << 20


def read_header(path: Path) -> dict[str, Any]:
    """What the header of a safetensors file says of each tensor, and `__metadata__`; empty for any other file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST_HEADER or file.read(1) != b"{":
            return {}
        try:
            header = json.loads(b"{" + file.read(length - 1))
        except (ValueError, RecursionError):
            return {}
    return header if isinstance(header, dict) else {}


def is_index(path: Path) -> bool:
    """Whether it is text that begins as JSON does."""
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"{")


def check_unpacked(path: Path) -> None:
    """Raises: WeightsError: a zip, as torch writes them, would take more memory than the file has bytes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise WeightsError(f"{path} unpacks to more than it is, which no checkpoint does: it was not unpacked")


def check_plain(path: Path, name: str, tensor: Tensor) -> None:
    """Raises: WeightsError: a tensor of a file of torch is of another kind than numbers in rows, or lets one number
    stand for many, as in a file made to fill the memory."""
    claimed = tensor.numel() * tensor.element_size()
    odd = tensor.is_meta or tensor.is_nested or tensor.is_quantized or tensor.is_complex()
    if odd or str(tensor.layout) != "torch.strided" or claimed > tensor.untyped_storage().nbytes():
        raise WeightsError(f"{path}: {name} is not a plain tensor of numbers")


def unreadable(path: Path, error: BaseException) -> WeightsError:
    """What there is to say where torch or safetensors could not read a checkpoint."""
    text = str(error)
    if found := re.search(r"GLOBAL (\S+)", text):
        return runs_code(path, found[1])
    # torch's own first lines advise to switch its protection off
    reason = re.search(r"WeightsUnpickler error: *(.+)", text)
    why = reason[1] if reason else (text.splitlines() or [type(error).__name__])[0]
    return WeightsError(f"{path} cannot be read as a checkpoint, it is damaged or cut short: {why}")


def runs_code(path: Path, name: str) -> WeightsError:
    """What there is to say of a checkpoint that asks for code to be run, and of which code."""
    return WeightsError(f"{path} asks to run {name}, which no checkpoint needs: nothing of it was run or loaded")


def tensors_in(path: Path, part: str = "") -> dict[Path, list[str]]:
    """The files of a checkpoint that hold tensors of a part of it, in order, and the names of those.

    Args:
        path: a safetensors file, or an index.
        part: regular expression for how the names begin; all where empty.

    Raises:
        WeightsError: the index makes no sense, or names what does not lie beside it.
    """
    wanted = re.compile(part)
    if not is_index(path):
        names = read_header(path).keys() - {"__metadata__"}
        return {path: sorted(name for name in names if wanted.match(name))}
    found: dict[Path, list[str]] = {}
    for name, file in sorted(read_index(path).items()):
        if wanted.match(name):
            found.setdefault(path.parent / file, []).append(name)
    if lost := [file.name for file in found if not file.is_file()]:
        raise WeightsError(f"{path} names {lost[0]}, which does not lie beside it: fetch or copy it as well")
    return dict(sorted(found.items()))


def read_index(path: Path) -> dict[str, str]:
    """The name of the file of each tensor. Raises: WeightsError: it makes no sense, or names no file of its folder."""
    try:
        if path.stat().st_size > _MOST_HEADER:
            raise ValueError("it is too long")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is no index of a checkpoint: {error}") from error
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not files:
        raise WeightsError(f"{path} is no index of a checkpoint: it has no weight_map")
    for file in files.values():
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            raise WeightsError(f"{path} names {file!r}, which is no safetensors file beside it: nothing was read")
    return files


def part_sha256(path: Path, part: str) -> str:
    """sha256 over the names, formats, shapes and bytes of the tensors of a part, hexadecimal.

    It is the same of one file and of several, and of checkpoints that differ in other parts only.

    Raises: WeightsError: the files are damaged, or have no such part.
    """
    entries = {}
    for file, names in tensors_in(path, part).items():
        header = read_header(file)
        for name in names:
            entries[name] = file, header.get(name)
    if not entries:
        raise WeightsError(f"{path} holds no tensors of an image side, whose names begin as {part}")
    digest = hashlib.sha256()
    for name, (file, entry) in sorted(entries.items()):
        try:
            start, end = entry["data_offsets"]
            digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
            _add(digest, file, start, end)
        except (TypeError, KeyError, ValueError, EOFError) as error:
            raise WeightsError(f"{file} is damaged or cut short: its header does not tell where {name} is") from error
    return digest.hexdigest()


def _add(digest: Any, path: Path, start: int, end: int) -> None:
    """The bytes of a safetensors file from `start` to `end` behind its header. Raises: EOFError, ValueError."""
    if not 0 <= start <= end:
        raise ValueError(start, end)
    with path.open("rb") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little") + start)
        left = end - start
        while left:
            if not (block := file.read(min(left, _BLOCK))):
                raise EOFError
            digest.update(block)
            left -= len(block)
