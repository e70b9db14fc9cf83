"""Names of tensors in published checkpoints, in the terms of the networks here.

The networks use detectron2's names, and for image transformers those of transformers. maskrcnn-benchmark's, and those
that the classes of transformers differ in, are translated by the tables below.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from cache import WeightsError

# Buffers that are computed or only mean something to a trainer
_IGNORED = re.compile(r"(^|\.)(cell_anchors(\.\d+)?|num_batches_tracked|pixel_mean|pixel_std)$")

_MASKRCNN_BENCHMARK = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^backbone\.body\.stem\.bn1\.", "backbone.bottom_up.stem.conv1.norm."),
        (r"^backbone\.body\.", "backbone.bottom_up."),
        (r"\.downsample\.0\.", ".shortcut."),
        (r"\.downsample\.1\.", ".shortcut.norm."),
        (r"\.bn([123])\.", r".conv\1.norm."),
        (r"^backbone\.fpn\.fpn_inner(\d)\.", lambda m: f"backbone.fpn_lateral{int(m[1]) + 1}."),
        (r"^backbone\.fpn\.fpn_layer(\d)\.", lambda m: f"backbone.fpn_output{int(m[1]) + 1}."),
        (r"\.layer([1234])\.", lambda m: f".res{int(m[1]) + 1}."),
        (r"^rpn\.anchor_generator\.", "proposal_generator.anchor_generator."),
        (r"^rpn\.head\.cls_logits\.", "proposal_generator.rpn_head.objectness_logits."),
        (r"^rpn\.head\.bbox_pred\.", "proposal_generator.rpn_head.anchor_deltas."),
        (r"^rpn\.head\.", "proposal_generator.rpn_head."),
        (r"^roi_heads\.box\.feature_extractor\.head\.", "roi_heads."),
        (r"^roi_heads\.box\.feature_extractor\.fc6\.", "roi_heads.box_head.fc1."),
        (r"^roi_heads\.box\.feature_extractor\.fc7\.", "roi_heads.box_head.fc2."),
        (r"^roi_heads\.box\.predictor\.", "roi_heads.box_predictor."),
    )
]

_TRANSFORMERS = [
    (re.compile(r"^(embeddings\.p|encoder\.layers\.|post_layernorm\.|head\.)"), r"vision_model.\1"),  # SigLIP by itself
    (re.compile(r"^(model\.)?vision_tower\.(vision_model\.)?"), "vision_model."),  # SigLIP within PaliGemma
    (re.compile(r"^vit\."), ""),  # a ViT within a classifier
]


def canonical_name(name: str) -> str | None:
    """The name of a tensor here; None for one that no network needs."""
    for pattern, replacement in (*_MASKRCNN_BENCHMARK, *_TRANSFORMERS):
        name = pattern.sub(replacement, name)
    return None if _IGNORED.search(name) else name


def canonical_names(names: Iterable[str], expected: Container[str] = ()) -> dict[str, str]:
    """Name here for each name of a checkpoint that a network may need; a name that is `expected` is left as it is.

    A "module." before every name, which data-parallel training leaves behind, is dropped.

    Raises:
        WeightsError: two names that mean the same tensor.
    """
    names = list(names)
    plain = {name: name for name in names}
    while plain and all(name.startswith("module.") for name in plain.values()):
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    translated = {name: short if short in expected else canonical_name(short) for name, short in plain.items()}
    found = {name: new for name, new in translated.items() if new is not None}
    if len(set(found.values())) < len(found):
        twice = sorted(new for new in set(found.values()) if list(found.values()).count(new) > 1)
        raise WeightsError(f"the checkpoint holds {twice[0]} under two names")
    return found
