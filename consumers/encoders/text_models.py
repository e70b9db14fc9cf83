"""Starting an encoder from a text model: BERT, multilingual BERT or XLM-R as transformers publishes them.

Layer i of the text model goes to the encoder's i-th attention of text to itself and to the feed-forward sublayer right
behind it. In shared sublayers the image side comes with it. A segment table with more rows than the text model's takes
its first rows from there. The text model's pooler and heads are not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .checkpoint import LoadReport, Problems, assign, normalised
from .config import TEXT, Attention, EncoderConfig
from .encoder import Encoder

LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)$")
ATTENTION_PARTS = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "norm",
}
FEED_FORWARD_PARTS = {"intermediate.dense": "fc1", "output.dense": "fc2", "output.LayerNorm": "norm"}
SEGMENTS = "text_embed.segment.weight"
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "text_embed.word.weight",
    "embeddings.position_embeddings.weight": "text_embed.position.weight",
    "embeddings.token_type_embeddings.weight": SEGMENTS,
    "embeddings.LayerNorm.weight": "text_embed.norm.weight",
    "embeddings.LayerNorm.bias": "text_embed.norm.bias",
}
UNUSED = re.compile(r"cls\.|pooler\.|.*\.position_ids$")


def is_text_model(state: Mapping[str, Tensor]) -> bool:
    """Whether it has layers in the names of transformers, and nothing that reads regions (OSCAR has both)."""
    has_layers = any(".attention.self.query." in name for name in state)
    return has_layers and not any(".img_embedding." in name for name in state)


def text_layers(config: EncoderConfig) -> list[int]:
    """The sublayers where text attends to itself, in order: where layers 0, 1, ... of a text model go."""
    return [n for n, step in enumerate(config.layout) if isinstance(step, Attention) and TEXT in step.text]


def fill_from_text_model(encoder: Encoder, state: Mapping[str, Tensor], source: str) -> LoadReport:
    """Give an encoder on the meta device the weights of a text model; the rest is initialised anew.

    Raises WeightsError naming tensors that are missing, unexpected or of another shape.
    """
    state = {re.sub(r"^bert\.", "", name): tensor for name, tensor in normalised(state).items()}
    places = text_layers(encoder.config)
    parameters = dict(encoder.named_parameters())
    problems, found, skipped = Problems(), {}, []
    for name, tensor in state.items():
        own = _own_name(name, places)
        if own is None:
            (skipped if UNUSED.match(name) else problems.unexpected).append(name)
            continue
        if own not in parameters:  # an encoder without segments
            skipped.append(name)
            continue
        wanted = parameters[own]
        if own == SEGMENTS and tensor.shape[1:] == wanted.shape[1:] and len(tensor) < len(wanted):
            others = torch.randn(len(wanted) - len(tensor), wanted.shape[1]) * encoder.config.init_std
            tensor = torch.cat((tensor.float(), others))
        if tensor.shape != wanted.shape:
            problems.shape(name, tensor, wanted)
        found[own] = tensor
    given = [n for n in places if any(own.startswith(f"blocks.{n}.") for own in found)]
    layers = places.index(given[-1]) + 1 if given else 0
    filled = [f"blocks.{n + k}.{TEXT}." for n in places[:layers] for k in (0, 1)]
    needed = [own for own in EMBEDDINGS.values() if own != SEGMENTS]
    needed += [own for own in parameters if own.startswith(tuple(filled))]
    problems.missing = [own for own in needed if own not in found]
    problems.raise_for(encoder, source)
    assign(encoder, found)
    return LoadReport(source, tuple(found), (), tuple(skipped), tuple(own for own in parameters if own not in found))


def _own_name(name: str, places: list[int]) -> str | None:
    if name in EMBEDDINGS:
        return EMBEDDINGS[name]
    match = LAYER.match(name)
    if not match or int(match[1]) >= len(places):
        return None
    place, part, leaf = places[int(match[1])], match[2], match[3]
    if part in ATTENTION_PARTS:
        return f"blocks.{place}.{TEXT}.{ATTENTION_PARTS[part]}.{leaf}"
    if part in FEED_FORWARD_PARTS:
        return f"blocks.{place + 1}.{TEXT}.{FEED_FORWARD_PARTS[part]}.{leaf}"
    return None
