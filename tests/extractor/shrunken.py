"""Any preset with a network small enough for tests, by the names of its architecture's fields, and random weights."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from extractor.networks import network_class
from extractor.preset import Preset

SMALL = {  # num_classes and num_attributes stay those of the vocabularies
    "stem_channels": 8,
    "widths": (8, 8, 8, 8),
    "channels": (16, 16, 24, 32),
    "blocks": (1, 1, 1, 1),
    "rpn_channels": 16,
    "pyramid_channels": 16,
    "proposals": 40,
    "pre_nms": 400,
    "pooled_size": 7,
    "roi_chunk": 16,
    "attribute_hidden": 16,
    "class_embedding": 8,
    "hidden": 32,
    "layers": 2,
    "heads": 2,
    "mlp": 48,
    "embedding": 32,
}
SHORT_SIDE = 120  # of resized images


def shrink(architecture: Any) -> Any:
    """The architecture with few channels, layers and proposals; what else it says is left as it is."""
    changes = {}
    for field in fields(architecture):
        value = getattr(architecture, field.name)
        if is_dataclass(value):
            changes[field.name] = shrink(value)
        elif field.name in SMALL:
            changes[field.name] = SMALL[field.name]
        elif field.name == "groups":
            changes[field.name] = min(value, 2)
        elif field.name == "anchor_sizes":
            changes[field.name] = tuple(size // 4 for size in value)
    return replace(architecture, **changes)


def shrunken(preset: Preset) -> Preset:
    """The preset under its own name, with a small network, and smaller images where it resizes by the short side."""
    preprocess = preset.preprocess
    if hasattr(preprocess, "long_side"):
        long_side = preprocess.long_side * SHORT_SIDE // preprocess.short_side
        preprocess = replace(preprocess, short_side=SHORT_SIDE, long_side=long_side)
    return replace(preset, architecture=shrink(preset.architecture), preprocess=preprocess)


def random_state(architecture: Any, seed: int = 7) -> dict[str, torch.Tensor]:
    """Tensors that a checkpoint has to have, spread out enough that regions differ in class and score."""
    network = network_class(architecture)(architecture)
    optional = getattr(network, "default_tensors", dict)()
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in network.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name in optional:
            continue
        if tensor.ndim >= 2:
            gain = 0.02 if "deltas" in name or "bbox_pred" in name else 6.0 if "cls_score" in name else 1.0
            state[name] = gain * noise * (2.0 / tensor[0].numel()) ** 0.5
        else:
            state[name] = (tensor + 0.1 * noise).clamp(min=0.05) if name.endswith(("weight", "var")) else 0.1 * noise
    return state


def save_weights(preset: Preset, folder: Path, seed: int = 7) -> Path:
    """A checkpoint for a preset, in the folder. Returns its path."""
    from safetensors.torch import save_file

    path = folder / f"{preset.name}-{seed}.safetensors"
    save_file(random_state(preset.architecture, seed), str(path))
    return path
