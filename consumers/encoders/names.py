"""Names of an encoder's tensors in Volta's state dicts.

Volta (Bugliarello et al. 2021) numbers attention and feed-forward sublayers in one list, prefixes the image side with
`v_`, and lists a tensor that two modules share once per module. Encoders that keep the names of their first release
override `Encoder.volta_modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .blocks import AttentionBlock, Block
from .config import TEXT

if TYPE_CHECKING:
    from .encoder import Encoder

Modules = Iterator[tuple[str, tuple[str, ...]]]  # own module name and its names in checkpoints, the canonical one first

TEXT_MODULES = {
    "text_embed.word": "bert.embeddings.word_embeddings",
    "text_embed.position": "bert.embeddings.position_embeddings",
    "text_embed.segment": "bert.embeddings.token_type_embeddings",
    "text_embed.norm": "bert.embeddings.LayerNorm",
    "pool_text.dense": "bert.t_pooler.dense",
    "pool_image.dense": "bert.v_pooler.dense",
}
IMAGE_TYPE = "bert.embeddings.image_token_type_embeddings"  # the text's segment table under a second name


def volta_names(encoder: Encoder) -> dict[str, tuple[str, ...]]:
    """Own parameter name -> its names in Volta, the canonical one first."""
    modules = dict(encoder.volta_modules())
    names = {}
    for own, _ in encoder.named_parameters():
        module, leaf = own.rsplit(".", 1)
        names[own] = tuple(f"{name}.{leaf}" for name in modules[module])
    return names


def volta_modules(encoder: Encoder) -> Modules:
    """The modules of an encoder in the names that Volta gave them."""
    for own, name in TEXT_MODULES.items():
        yield own, (name,)
    yield from image_and_heads(encoder)
    if encoder.config.image_embedding == "uc2":
        yield "text_embed.segment", ("bert.embeddings.new_token_type_embeddings", IMAGE_TYPE)
    elif encoder.config.image_embedding == "uniter" and not encoder.config.image_types:
        yield "text_embed.segment", (TEXT_MODULES["text_embed.segment"], IMAGE_TYPE)
    for n, block in enumerate(encoder.blocks):
        yield from _block(n, block)


def image_and_heads(encoder: Encoder) -> Modules:
    """Those modules that name themselves."""
    for part, name in encoder.image_embed.VOLTA.items():
        yield f"image_embed.{part}", (name,)
    for key, head in encoder.heads.items():
        for part, name in head.volta_modules().items():
            yield f"heads.{key}.{part}", (name,)


def single_stream_blocks(encoder: Encoder, attention: dict[str, str], feed_forward: dict[str, str]) -> Modules:
    """The sublayers of an encoder of one stream whose checkpoints number layers of two sublayers; the names of the
    parts have the number for {}."""
    for n, block in enumerate(encoder.blocks):
        for part, name in (attention if isinstance(block, AttentionBlock) else feed_forward).items():
            yield f"blocks.{n}.{TEXT}.{part}", (name.format(n // 2),)


def _block(n: int, block: Block) -> Modules:
    layer = f"bert.encoder.layer.{n}"
    if isinstance(block, AttentionBlock):
        parts = {"q": ("attention_self", "query"), "k": ("attention_self", "key"), "v": ("attention_self", "value")}
        parts |= {"out": ("attention_output", "dense"), "norm": ("attention_output", "LayerNorm")}
    else:
        parts = {"fc1": ("intermediate", "dense"), "fc2": ("output", "dense"), "norm": ("output", "LayerNorm")}
    for stream in block.own_sides():
        for part, (module, name) in parts.items():
            plain, image = f"{layer}.{module}.{name}", f"{layer}.{module}.v_{name}"
            twins = (plain, image) if block.shared else (plain if stream == TEXT else image,)
            yield f"blocks.{n}.{stream}.{part}", twins
