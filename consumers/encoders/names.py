"""Names of an encoder's tensors in Volta's state dicts.

Volta (Bugliarello et al. 2021) numbers attention and feed-forward sublayers in one list, prefixes the image side with
`v_`, and lists a tensor that two modules share once per module. M3P keeps the names of its first release.
"""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import AttentionBlock, Block
from .config import TEXT
from .encoder import Encoder
from .m3p import M3P

TEXT_MODULES = {
    "text_embed.word": "bert.embeddings.word_embeddings",
    "text_embed.position": "bert.embeddings.position_embeddings",
    "text_embed.segment": "bert.embeddings.token_type_embeddings",
    "text_embed.norm": "bert.embeddings.LayerNorm",
    "pool_text.dense": "bert.t_pooler.dense",
    "pool_image.dense": "bert.v_pooler.dense",
}
M3P_MODULES = {
    "text_embed.word": "bert.encoder.embeddings",
    "text_embed.position": "bert.encoder.position_embeddings",
    "text_embed.norm": "bert.encoder.layer_norm_emb",
}
M3P_POOLER = ("bert.encoder.pooled_layer.dense", "bert.pooler.dense")
IMAGE_TYPE = "bert.embeddings.image_token_type_embeddings"  # the text's segment table under a second name


def volta_names(encoder: Encoder) -> dict[str, tuple[str, ...]]:
    """Own parameter name -> its names in Volta, the canonical one first."""
    modules = dict(_modules(encoder))
    names = {}
    for own, _ in encoder.named_parameters():
        if own.startswith("unused."):
            names[own] = ("bert.encoder." + own.removeprefix("unused."),)
        else:
            module, leaf = own.rsplit(".", 1)
            names[own] = tuple(f"{name}.{leaf}" for name in modules[module])
    return names


def _modules(encoder: Encoder) -> Iterator[tuple[str, tuple[str, ...]]]:
    is_m3p = isinstance(encoder, M3P)
    for own, name in (M3P_MODULES if is_m3p else TEXT_MODULES).items():
        yield own, (name,)
    for part, name in encoder.image_embed.VOLTA.items():
        yield f"image_embed.{part}", (name,)
    if is_m3p:
        yield "pool_text.dense", M3P_POOLER
    elif encoder.config.image_embedding == "uc2":
        yield "text_embed.segment", ("bert.embeddings.new_token_type_embeddings", IMAGE_TYPE)
    elif encoder.config.image_embedding == "uniter" and not encoder.config.image_types:
        yield "text_embed.segment", (TEXT_MODULES["text_embed.segment"], IMAGE_TYPE)
    for n, block in enumerate(encoder.blocks):
        yield from _m3p_block(n, block) if is_m3p else _block(n, block)
    for key, head in encoder.heads.items():
        for part, name in head.volta_modules().items():
            yield f"heads.{key}.{part}", (name,)


def _block(n: int, block: Block) -> Iterator[tuple[str, tuple[str, ...]]]:
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


def _m3p_block(n: int, block: Block) -> Iterator[tuple[str, tuple[str, ...]]]:
    layer = n // 2
    if isinstance(block, AttentionBlock):
        parts = {part: f"attentions.{layer}.{part}_lin" for part in ("q", "k", "v", "out")}
        parts["norm"] = f"layer_norm1.{layer}"
    else:
        parts = {"fc1": f"ffns.{layer}.lin1", "fc2": f"ffns.{layer}.lin2", "norm": f"layer_norm2.{layer}"}
    for part, name in parts.items():
        yield f"blocks.{n}.{TEXT}.{part}", (f"bert.encoder.{name}",)
