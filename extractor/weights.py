"""Checkpoint loading that never guesses: every expected tensor present, every shape equal, nothing left over.

Importing this needs no torch, so that a job can tell which weights it will use before it loads any.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cache import InputNotFound, WeightsError
from cache.tensor_files import INDEX, is_index, part_sha256, read_header

from .preset import Preset, weights_folder

if TYPE_CHECKING:
    import torch

FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")  # what transformers calls a checkpoint, the first preferred
SOURCE_SHA256 = "source_sha256"  # metadata of a converted checkpoint: the sha256 of the file it was made from


def weights_path(preset: Preset, weights: str | Path | None = None) -> Path:
    """The checkpoint to load: the given file, or that in the given folder of transformers, else the installed one.

    Raises:
        InputNotFound: it is not there; says how to get it.
        WeightsError: the folder is of another model.
    """
    path = Path(weights) if weights is not None else preset.weights_file
    if path.is_dir():
        check_folder = getattr(preset.architecture, "check_folder", None)
        if check_folder:
            check_folder(path, preset.preprocess)
        path = checkpoint_in(path)
    if is_readable(path):
        return path
    if weights is None and preset.urls:
        raise InputNotFound(
            f"the weights of model {preset.name!r} are not installed ({path}); run\n"
            f"  roivault weights fetch {preset.name}\n"
            "or, with a copy of the file at one of these addresses,\n"
            f"  roivault weights import {preset.name} FILE\n" + "\n".join(f"    {url}" for url in preset.urls)
        )
    raise InputNotFound(
        f"no weights for model {preset.name!r} at {path}, or none that may be read; give one with --weights FILE"
    )


def checkpoint_in(folder: Path) -> Path:
    """The checkpoint in a folder that transformers wrote, or what it would be called."""
    files = [folder / name for name in (FOLDER_FILES[0], INDEX, *FOLDER_FILES[1:])]
    return next((file for file in files if file.is_file()), files[0])


def is_readable(path: Path) -> bool:
    """Whether it is a file that this process may read."""
    return path.is_file() and os.access(path, os.R_OK)


def check_weights(preset: Preset, weights: str | Path | None = None) -> None:
    """Refuse what loading the model would refuse; an installed checkpoint was compared with it by `weights import`.

    Raises:
        InputNotFound: the checkpoint is not there.
        WeightsError: the given one is damaged or belongs to another model.
        UsageError: the model needs a package that is not installed.
    """
    path = weights_path(preset, weights)
    if weights is not None:
        from .networks import empty_network

        matching_tensors(empty_network(preset.architecture), path)


def file_sha256(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def weights_sha256(path: Path, part: str = "") -> str:
    """What tells a checkpoint from others in a store's fingerprint, hexadecimal.

    The sha256 of the file, or of the file it was converted from, so that the original and its conversion are the same.
    Only what lies in the cache is believed about its origin: `weights import` wrote it, and its checksum is kept.
    Of a checkpoint in several files, or of which only a part is read (`Preset.part`), it is that of what is read.

    Raises: WeightsError: of several files, one is damaged or missing.
    """
    if path.resolve().parent == weights_folder().resolve():
        if source := read_metadata(path).get(SOURCE_SHA256):
            return source
    if is_index(path) or (part and read_header(path)):
        return part_sha256(path, part)
    return file_sha256(path)


def read_metadata(path: Path) -> dict[str, str]:
    """The text entries in the header of a safetensors file; empty for any other file."""
    metadata = read_header(path).get("__metadata__")
    return metadata if isinstance(metadata, dict) else {}


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Fill `model` with the tensors of a checkpoint of any known format and naming.

    Tensors that the model's class declares in `unused_tensors` (a regular expression) may be there and are dropped;
    those that its `default_tensors` gives may be missing. What its `doubts` says of the others is a warning.

    Raises:
        InputNotFound: there is no such file.
        WeightsError: it cannot be read safely, or tensors are missing, unknown, of another shape or not finite; names
            them, and the models that the file is for, and leaves the model as it was.
    """
    model.load_state_dict(matching_tensors(model, path))


def matching_tensors(model: torch.nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """The tensors that `load_weights` fills a model with; the model may be on the meta device. Raises the same."""
    import torch

    from .checkpoints import read_checkpoint

    loaded = read_checkpoint(path, getattr(model, "part", ""))
    try:
        state, problems = named_tensors(model, loaded)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from None
    misfits = len(problems)
    problems += [f"{name} holds NaN or infinite values" for name in state if not torch.isfinite(state[name]).all()]
    if problems:
        from .fitting import models_for

        shown = "; ".join(sorted(problems)[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        others = ", ".join(models_for(loaded)) if misfits else ""
        raise WeightsError(f"{path} does not fit this model{others and f', it is for {others}'}: {shown}")
    if words := getattr(model, "doubts", lambda state: "")(state):
        warnings.warn(f"{path}: {words}", stacklevel=1)  # of this line, so that it is shown once
    return state


def named_tensors(
    model: torch.nn.Module, loaded: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Tensors of a checkpoint under the model's names, with its defaults, and what is missing, unknown or misshapen.

    Raises: WeightsError: two names that mean the same tensor.
    """
    from .tensor_names import canonical_names

    expected = model.state_dict()
    unused = re.compile(getattr(model, "unused_tensors", "$^"))
    translated = canonical_names(loaded, expected)
    names = {name: new for name, new in translated.items() if new in expected or not unused.match(new)}
    state = getattr(model, "default_tensors", dict)() | {new: loaded[name] for name, new in names.items()}
    problems = [f"missing {name}" for name in expected if name not in state]
    problems += [f"unknown {name}" for name, new in names.items() if new not in expected]
    for name in expected.keys() & state.keys():
        if state[name].shape != expected[name].shape:
            problems.append(f"{name} has shape {list(state[name].shape)}, expected {list(expected[name].shape)}")
    return state, problems
