"""Checkpoint loading that never guesses: every expected tensor present, every shape equal, nothing left over."""

from __future__ import annotations

import hashlib
from pathlib import Path

from typing import TYPE_CHECKING

from cache import InputNotFound, WeightsError

from .presets import Preset

if TYPE_CHECKING:
    import torch


def weights_path(preset: Preset, weights: str | Path | None = None) -> Path:
    """The checkpoint to load: the given file, else the one that ships with the preset. Raises: InputNotFound."""
    path = Path(weights) if weights is not None else preset.weights_file
    if not path.is_file():
        raise InputNotFound(f"no weights for model {preset.name!r} at {path}; give a checkpoint with --weights FILE")
    return path


def file_sha256(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Fill `model` with the tensors of a safetensors file.

    Raises:
        WeightsError: not a safetensors file, or tensors that are missing, unknown, of another shape or not finite;
            names them all and leaves the model as it was.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise WeightsError(f"{path} cannot be read as a safetensors checkpoint: {error}") from error
    expected = model.state_dict()
    problems = [f"missing {name}" for name in expected if name not in state]
    problems += [f"unknown {name}" for name in state if name not in expected]
    for name in expected.keys() & state.keys():
        if state[name].shape != expected[name].shape:
            problems.append(f"{name} has shape {list(state[name].shape)}, expected {list(expected[name].shape)}")
        elif not torch.isfinite(state[name]).all():
            problems.append(f"{name} holds NaN or infinite values")
    if problems:
        shown = "; ".join(sorted(problems)[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise WeightsError(f"{path} does not fit this model: {shown}")
    model.load_state_dict(state)
