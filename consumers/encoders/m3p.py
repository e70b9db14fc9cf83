"""M3P (Ni et al., CVPR 2021): one XLM encoder over regions first, then words, each with its place in the sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from .config import EncoderConfig
from .encoder import Embedded, Encoder, EncoderOutput
from .image_embeddings import SummedImage

# Sizes of parts that the published model has but never runs in fine-tuning.
LANGUAGES, OBJECT_CLASSES = 100, 1600
REFINE_LAYERS, TRANSFORMS = 6, 2


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
