"""M3P (Ni et al., CVPR 2021): one XLM encoder over regions first, then words, each with its place in the sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from .config import EncoderConfig, single_stream
from .encoder import Embedded, Encoder, EncoderOutput
from .image_embeddings import SummedImage
from .names import Modules, image_and_heads, single_stream_blocks
from .volta import Shapes, stream_config

# Sizes of parts that the published model has but never runs in fine-tuning.
LANGUAGES, OBJECT_CLASSES = 100, 1600
REFINE_LAYERS, TRANSFORMS = 6, 2

MODULES = {
    "text_embed.word": ("bert.encoder.embeddings",),
    "text_embed.position": ("bert.encoder.position_embeddings",),
    "text_embed.norm": ("bert.encoder.layer_norm_emb",),
    "pool_text.dense": ("bert.encoder.pooled_layer.dense", "bert.pooler.dense"),
}
ATTENTION = {part: f"bert.encoder.attentions.{{}}.{part}_lin" for part in ("q", "k", "v", "out")}
ATTENTION["norm"] = "bert.encoder.layer_norm1.{}"
FEED_FORWARD = {"fc1": "ffns.{}.lin1", "fc2": "ffns.{}.lin2", "norm": "layer_norm2.{}"}
FEED_FORWARD = {part: f"bert.encoder.{name}" for part, name in FEED_FORWARD.items()}


class M3PImage(SummedImage):
    VOLTA = {
        "feature": "bert.encoder.image_embeddings.image_embeddings",
        "location": "bert.encoder.image_embeddings.image_location_embeddings",
        "norm": "bert.encoder.image_embeddings.LayerNorm",
    }


class M3P(Encoder):
    """Words follow a sample's last region: a padded region slot takes no place and no attention.

    Published quirk, reproduced under `legacy`: words follow the last slot, and the first n_regions + n_words positions
    of the padded sequence count as real, so that with fewer regions than slots padding is attended to and as many words
    at the end are lost. With all slots filled both agree.

    `pooled` reads the first region; there are no separate poolers. `unused` holds the published tensors that no
    computation reads, frozen, so that saving a loaded model loses nothing.
    """

    optional = ("unused.",)

    def __init__(self, config: EncoderConfig, heads: Iterable[str] | Mapping[str, int] = (), legacy: bool = False):
        super().__init__(config, heads, legacy)
        self.unused = nn.Module()
        for name, shape in unused_tensors(config):
            _register(self.unused, name, shape)

    def image_embedding(self) -> nn.Module:
        return M3PImage(self.config)

    def text_vectors(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        return self.text_embed.word(input_ids)

    def fuse(self, text: Embedded, regions: Embedded, pooled_only: bool = False) -> EncoderOutput:
        joint, mask = self.join_sequence(text, regions)
        slots = regions.mask.shape[1]
        if pooled_only:
            rows, slots = [0, slots], 1
            joint = self.run_joint(joint, mask, range(len(self.blocks)), rows)
        else:
            joint = self.run_joint(joint, mask, range(len(self.blocks))) * mask[..., None]
        return EncoderOutput(joint[:, slots:], joint[:, :slots], None, None, self.pool_text(joint))

    def join_sequence(self, text: Embedded, regions: Embedded) -> tuple[Tensor, Tensor]:
        """-> embedded sequence [B, R + L, hidden], its mask bool [B, R + L]"""
        self.check_pair(text, regions)
        places = torch.arange(regions.mask.shape[1] + text.mask.shape[1], device=text.mask.device)
        places = places.expand(len(text), -1)
        if self.legacy:
            mask = places < (regions.lengths + text.mask.sum(1))[:, None]
        else:
            mask = torch.cat((regions.mask, text.mask), 1)
            gap = regions.mask.shape[1] - regions.lengths
            places = places - gap[:, None] * (places >= regions.mask.shape[1])
        joint = torch.cat((regions.vectors, text.vectors), 1) + self.text_embed.position(places)
        return self.text_embed.finish(joint * mask[..., None]), mask

    def positions_needed(self, length: int, slots: int) -> int:
        return slots + length

    def volta_modules(self) -> Modules:
        yield from MODULES.items()
        yield from image_and_heads(self)
        yield from single_stream_blocks(self, ATTENTION, FEED_FORWARD)
        for name, _ in self.unused.named_modules():
            yield f"unused.{name}", (f"bert.encoder.{name}",)

    @staticmethod
    def read_volta(config: Mapping, family: str, shapes: Shapes) -> dict:
        root = "bert.encoder"
        vocabulary, hidden = shapes(f"{root}.embeddings.weight")
        ffn = shapes(f"{root}.ffns.0.lin1.weight")[0]
        stream = replace(stream_config(config, "", hidden, config.get("n_heads", 12)), ffn=ffn)
        return {
            "vocab_size": vocabulary,
            "layout": single_stream(shapes.layers(f"{root}.attentions.{{}}.q_lin.weight")),
            "max_positions": shapes(f"{root}.position_embeddings.weight")[0],
            "text_types": 0,
            "text": stream,
            "image": stream,
            "regions": 100,
            "feature_dim": shapes(f"{M3PImage.VOLTA['feature']}.weight")[1],
            "location_dim": shapes(f"{M3PImage.VOLTA['location']}.weight")[1],
            "pool_size": shapes(f"{root}.pooled_layer.dense.weight")[0],
            "pool_activation": "tanh",
            "fusion": "text",
        }


def unused_tensors(config: EncoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names, below `bert.encoder.`, and shapes of the published tensors that fine-tuning never reads."""
    hidden, ffn = config.text.hidden, config.text.ffn
    layers = len(config.layout) // 2

    def linear(name: str, n_in: int = hidden, n_out: int = hidden):
        yield f"{name}.weight", (n_out, n_in)
        yield f"{name}.bias", (n_out,)

    def norm(name: str):
        yield f"{name}.weight", (hidden,)
        yield f"{name}.bias", (hidden,)

    yield "cross_lang_embeddings.weight", (LANGUAGES, hidden)
    yield from linear("image_embeddings.image_distbution_embeddings", OBJECT_CLASSES)
    for i in range(REFINE_LAYERS):
        layer = f"refine_embeddings.layers.{i}"
        for j in range(3):
            yield from linear(f"{layer}.self_attn.linears.{j}")
        yield from linear(f"{layer}.self_attn.aoa_layer.0", 2 * hidden, 2 * hidden)
        yield from linear(f"{layer}.feed_forward.lin1", hidden, ffn)
        yield from linear(f"{layer}.feed_forward.lin2", ffn, hidden)
        yield from norm(f"{layer}.sublayer.0.norm")
        yield from norm(f"{layer}.sublayer.1.norm")
    yield from norm("refine_embeddings.norm")
    for part in ("c", "q", "cq"):
        yield from linear(f"cross_alignment.att_weight_{part}", hidden, 1)
    yield from linear("cross_alignment.align_output")
    yield from norm("cross_alignment.layer_norm")
    for i in range(layers):
        yield from norm(f"layer_norm15.{i}")
        for part in ("q", "k", "v", "out"):
            yield from linear(f"encoder_attn.{i}.{part}_lin")
    for i in range(TRANSFORMS):
        yield from linear(f"latent_transforms.{i}.x_to_mu")
        yield from linear(f"latent_transforms.{i}.x_to_logvar")
        yield from linear(f"latent_transforms.{i}.out_dense", 2 * hidden)
        yield from linear(f"original_transforms.{i}.dense")
        yield from linear(f"original_transforms.{i}.dense_mu")
        yield from norm(f"original_transforms.{i}.LayerNorm")
    yield from linear("pooled_layer2.dense")
    yield from linear("seq_relationship", hidden, 1)
    yield from linear("seq_relationship2", hidden, 1)
    yield from linear("mrfr_dense", hidden, config.feature_dim)
    yield from linear("transformer_obj.dense")
    yield from norm("transformer_obj.LayerNorm")


def _register(root: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.register_parameter(leaf, nn.Parameter(torch.empty(shape), requires_grad=False))
