"""The image sides of models that write about pictures: what a store has of them in the place of pixels.

    extract images/ -o patches.roi --model blip2:DIR_OR_HUB_ID

leaves what the image side says of each picture, which the rest of the same model reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cache import StoreMismatch
from cache.tensor_files import IMAGE_SIDE, INDEX, part_sha256


def take_either(tower: nn.Module) -> None:
    """Make an image side take, beside pixels [B, 3, H, W], what it said of pictures before, [B, P, d], as it is."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    look = tower.forward

    def forward(pixel_values: Tensor, **options: Any) -> Any:
        if pixel_values.ndim == 3:
            return BaseModelOutputWithPooling(last_hidden_state=pixel_values)
        return look(pixel_values, **options)

    tower.forward = forward


def check_store(model: str, source: str, made_with: Mapping[str, Any]) -> list[str]:
    """What is unusual about a store of patches that a model is to read.

    Args:
        model: name of the model, which that of its extractor begins with.
        source: its folder or hub id.
        made_with: fingerprint of the store.

    Raises: StoreMismatch: they come from another model, or from other weights.
    """
    remedy = f"extract with --model {model}:{source}"
    preset = str(made_with.get("preset", "something unknown"))
    if preset.partition(":")[0] != model or made_with.get("given_boxes"):
        has = f"given boxes by {preset}" if made_with.get("given_boxes") else f"what {preset} made"
        raise StoreMismatch(f"{model} reads patches of its own image side, and the store has {has}: {remedy}")
    checkpoint, notes = _checkpoint(source), []
    if checkpoint is None:
        notes.append(f"{source} has no safetensors, so its weights were not compared with those that the store is of")
    elif part_sha256(checkpoint, IMAGE_SIDE) != made_with.get("weights_sha256"):
        raise StoreMismatch(f"the image side of {source} has other weights than the one that the store is of: {remedy}")
    less = {made_with.get(name) for name in ("precision", "feature_dtype")} - {"float32", None}
    if less:
        formats = " and ".join(sorted(less))
        notes.append(f"patches were made or kept in {formats}: answers may differ from those to pixels")
    return notes


def _checkpoint(source: str) -> Path | None:
    """The safetensors file or index of a folder, or of a hub id that was loaded before."""
    from transformers.utils import cached_file

    for name in ("model.safetensors", INDEX):
        if Path(source).is_dir():
            found = Path(source) / name
        else:
            found = cached_file(
                source, name, local_files_only=True, _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )  # fmt: skip
        if found and Path(found).is_file():
            return Path(found)
    return None
