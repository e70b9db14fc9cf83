"""The inputs of an encoder, checked before they are used: an error names the tensor, its shape and the shape wanted."""

from __future__ import annotations

import torch
from torch import Tensor

from cache import DataError

from .config import EncoderConfig


class InputError(DataError, ValueError):
    """A tensor that the encoder cannot take; `tensor` is its name."""

    def __init__(self, tensor: str, got: Tensor | tuple[int, ...], wanted: object, why: str = ""):
        shape = tuple(got.shape) if isinstance(got, Tensor) else tuple(got)
        super().__init__(f"{tensor} has shape {shape}; expected {wanted}" + (f": {why}" if why else ""))
        self.tensor = tensor


def _check_tensor(tensor: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InputError(tensor, getattr(value, "shape", ()), "a torch tensor", f"it is a {type(value).__name__}")


def check_text(config: EncoderConfig, input_ids: Tensor, input_mask: Tensor) -> None:
    """input_ids int [B, L] within the vocabulary, input_mask [B, L] with at least one token per text."""
    _check_tensor("input_ids", input_ids)
    _check_tensor("input_mask", input_mask)
    if input_ids.ndim != 2 or not input_ids.numel():
        raise InputError("input_ids", input_ids, "(B, L) with B and L at least 1")
    if input_ids.is_floating_point():
        raise InputError("input_ids", input_ids, "(B, L) of integers", f"they are {input_ids.dtype}")
    if input_mask.shape != input_ids.shape:
        raise InputError("input_mask", input_mask, f"{tuple(input_ids.shape)}, the shape of input_ids")
    if input_ids.shape[1] > config.max_text:
        raise InputError(
            "input_ids",
            input_ids,
            f"at most ({len(input_ids)}, {config.max_text})",
            f"{config.name}'s position table has shape ({config.max_positions}, {config.text.hidden})",
        )
    if torch.compiler.is_compiling() or input_ids.is_meta:
        return
    low, high = torch.stack(input_ids.aminmax()).tolist()
    if low < 0 or high >= config.vocab_size:
        table = f"({config.vocab_size}, {config.text.hidden})"
        why = f"token id {low if low < 0 else high} is not a row of {config.name}'s word table of shape {table}"
        raise InputError("input_ids", input_ids, f"ids from 0 to {config.vocab_size - 1}", why)
    _check_mask("input_mask", input_mask, "token")


def check_regions(config: EncoderConfig, features: Tensor, locations: Tensor, region_mask: Tensor) -> None:
    """features [B, R, feature_dim] and locations [B, R, location_dim], finite; region_mask [B, R] with at least one
    region per sample."""
    for name, value in (("features", features), ("locations", locations), ("region_mask", region_mask)):
        _check_tensor(name, value)
    if features.ndim != 3 or features.shape[2] != config.feature_dim:
        b, r = features.shape[:2] if features.ndim == 3 else ("B", "R")
        raise InputError("features", features, f"({b}, {r}, {config.feature_dim})", f"what {config.name} reads")
    if not features.numel():
        raise InputError("features", features, f"({features.shape[0] or 'B'}, at least 1, {config.feature_dim})")
    wanted = (*features.shape[:2], config.location_dim)
    if locations.shape != wanted:
        raise InputError("locations", locations, wanted, f"{config.name} reads {config.location_dim} values per region")
    if region_mask.shape != features.shape[:2]:
        raise InputError("region_mask", region_mask, f"{tuple(features.shape[:2])}, the first two axes of features")
    if torch.compiler.is_compiling() or features.is_meta:
        return
    for name, values in (("features", features), ("locations", locations)):
        finite = torch.isfinite(values)
        if not finite.all():
            where = tuple((~finite).nonzero()[0].tolist())
            why = f"the value at {where} is {values[where].item()}"
            raise InputError(name, values, f"{tuple(values.shape)} of finite numbers", why)
    _check_mask("region_mask", region_mask, "region")


def _check_mask(name: str, mask: Tensor, what: str) -> None:
    present = mask.bool()
    if not torch.equal(present.to(mask.dtype), mask):
        raise InputError(name, mask, f"{tuple(mask.shape)} of zeros and ones", f"it holds {mask.max().item()}")
    counts = present.sum(1)
    if not counts.all():
        wanted = f"{tuple(mask.shape)} with at least one {what} per sample"
        raise InputError(name, mask, wanted, f"sample {int((counts == 0).nonzero()[0])} has none")


def check_pair(config: EncoderConfig, text: tuple[int, ...], image: tuple[int, ...], positions: int) -> None:
    """Shapes (B, L) and (B, R) of one batch, and the position rows the two need together."""
    if text[0] != image[0]:
        raise InputError("features", image, f"({text[0]}, R, ...)", f"input_ids has shape {text}")
    if positions > config.max_positions:
        table = f"({config.max_positions}, {config.text.hidden})"
        why = f"with regions {image} that takes {positions} rows of {config.name}'s position table of shape {table}"
        raise InputError("input_ids", text, f"at most {text[1] - positions + config.max_positions} tokens", why)
