"""The encoder: two embedded streams through a sequence of sublayers, pooled and fused.

Text and regions are embedded apart from each other (`embed_text`, `embed_regions`) and meet in `fuse`, so that scoring
many pairs embeds every text and every image once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cache import UsageError

from .blocks import build_block
from .config import IMAGE, TEXT, EncoderConfig
from .heads import Head, head_labels
from .image_embeddings import IMAGE_EMBEDDINGS
from .inputs import check_pair, check_regions, check_text
from .names import Modules, volta_modules, volta_names
from .text_embedding import TextEmbedding
from .volta import Shapes, read_bert

if TYPE_CHECKING:
    from .checkpoint import LoadReport


class EncoderOutput(NamedTuple):
    """text [B, L, hidden], regions [B, R, image hidden]; pooled_text, pooled_regions [B, P], None where the encoder has
    no such pooler; pooled [B, P], what the heads read."""

    text: Tensor
    regions: Tensor
    pooled_text: Tensor | None
    pooled_regions: Tensor | None
    pooled: Tensor


@dataclass(frozen=True)
class Embedded:
    """Texts or images before they meet: vectors [B, N, hidden], mask bool [B, N], and how many are real [B]."""

    vectors: Tensor
    mask: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: slice | Tensor) -> Embedded:
        """Some of the items, in the order of `index`."""
        return Embedded(self.vectors[index], self.mask[index], self.lengths[index])

    @staticmethod
    def concatenated(batches: Sequence[Embedded]) -> Embedded:
        """Batches of any lengths as one, padded to the longest."""
        size = max(batch.mask.shape[1] for batch in batches)
        gaps = [size - batch.mask.shape[1] for batch in batches]
        vectors = torch.cat([F.pad(batch.vectors, (0, 0, 0, gap)) for batch, gap in zip(batches, gaps, strict=True)])
        mask = torch.cat([F.pad(batch.mask, (0, gap)) for batch, gap in zip(batches, gaps, strict=True)])
        return Embedded(vectors, mask, torch.cat([batch.lengths for batch in batches]))

    def trimmed(self) -> Embedded:
        """Without the slots that are padding in every item."""
        slots = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        size = int((slots * self.mask).amax())
        return replace(self, vectors=self.vectors[:, :size], mask=self.mask[:, :size])

    def expanded(self, count: int) -> Embedded:
        """One item as a batch of `count`, without a copy."""
        return Embedded(*(x.expand(count, *x.shape[1:]) for x in (self.vectors, self.mask, self.lengths)))


class Pooler(nn.Module):
    """The first vector of a stream through a linear layer and its activation."""

    def __init__(self, hidden: int, size: int, activation: str):
        super().__init__()
        self.dense = nn.Linear(hidden, size)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[activation]

    def forward(self, stream: Tensor) -> Tensor:
        return self.activation(self.dense(stream[:, 0]))


class Encoder(nn.Module):
    """One encoder with its task heads.

    `encoder(input_ids, input_mask, features, locations, region_mask)` -> EncoderOutput, for input_ids [B, L],
    input_mask [B, L], features [B, R, feature_dim], locations [B, R, location_dim] (fractions of the image size, see
    `config`), region_mask [B, R]. Raises InputError for tensors that do not fit. Masks hold 1 for what is real;
    outputs at padding are numbers without meaning. `encoder.head(name)(output)` gives logits.

    `legacy` reproduces the published code where it makes a sample depend on its batch (see `VlBert`, `M3P`).
    `checkpointing = True` recomputes each sublayer in the backward pass instead of keeping its activations.
    `report` says what a loaded checkpoint held. `optional` are the beginnings of names of parameters that a checkpoint
    may lack, `head_names` tells in checkpoints the tensors of heads, with what they begin with as its first group.
    """

    optional: tuple[str, ...] = ()
    head_names = re.compile(r"(clfs_dict\.TASK\d+)\.")

    def __init__(self, config: EncoderConfig, heads: Iterable[str] | Mapping[str, int] = (), legacy: bool = False):
        super().__init__()
        self.config, self.legacy = config, legacy
        self.checkpointing = False
        self.report: LoadReport | None = None
        self.text_embed = TextEmbedding(config)
        self.image_embed = self.image_embedding()
        self.blocks = nn.ModuleList(build_block(config, step) for step in config.layout)
        self.pool_text = Pooler(config.text.hidden, config.pool_size, config.pool_activation)
        if config.fusion != "text":
            self.pool_image = Pooler(config.image.hidden, config.pool_size, config.pool_activation)
        self.heads = nn.ModuleDict({name: self.build_head(name, n) for name, n in head_labels(heads).items()})

    def forward(
        self, input_ids: Tensor, input_mask: Tensor, features: Tensor, locations: Tensor, region_mask: Tensor
    ) -> EncoderOutput:
        return self.fuse(self.embed_text(input_ids, input_mask), self.embed_regions(features, locations, region_mask))

    def build_head(self, name: str, labels: int) -> Head:
        return Head(self.config, name, labels)

    def image_embedding(self) -> nn.Module:
        return IMAGE_EMBEDDINGS[self.config.image_embedding](self.config)

    def text_vectors(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """What can be known of texts [B, L] without their images: [B, L, hidden]"""
        return self._alone(TEXT, self.text_embed(input_ids), mask)

    def head(self, name: str) -> Head:
        if name not in self.heads:
            built = ", ".join(self.heads) or "none"
            raise UsageError(f"{self.config.name} was built without the head {name!r}; its heads: {built}")
        return self.heads[name]

    def embed_text(self, input_ids: Tensor, input_mask: Tensor) -> Embedded:
        """Texts alone, through every sublayer that does not look at the image."""
        check_text(self.config, input_ids, input_mask)
        mask = input_mask.bool()
        lengths = (input_ids != self.config.pad_id).sum(1)
        return Embedded(self.text_vectors(input_ids, mask), mask, lengths)

    def embed_regions(self, features: Tensor, locations: Tensor, region_mask: Tensor) -> Embedded:
        """Images alone, through every sublayer that does not look at the text."""
        check_regions(self.config, features, locations, region_mask)
        mask = region_mask.bool()
        dtype = self.text_embed.word.weight.dtype
        vectors = self.image_embed(features.to(dtype), locations.to(dtype), self.text_embed)
        return Embedded(self._alone(IMAGE, vectors, mask), mask, mask.sum(1))

    def fuse(self, text: Embedded, regions: Embedded, pooled_only: bool = False) -> EncoderOutput:
        """Pairs of an embedded text and an embedded image: item i of both is pair i.

        `pooled_only` spares the positions that no pooler reads in the last layer: of `text` and `regions` the output
        then has the first position alone.
        """
        self.check_pair(text, regions)
        words, visual = self.join(text, regions)
        masks = text.mask, regions.mask
        words, visual = self.run(words, visual, *masks, first=self.config.first_crossing, pooled_only=pooled_only)
        pooled = pooled_text = self.pool_text(words)
        pooled_regions = None
        if self.config.fusion != "text":
            pooled_regions = self.pool_image(visual)
            pooled = pooled_text * pooled_regions if self.config.fusion == "mul" else pooled_text + pooled_regions
        return EncoderOutput(words, visual, pooled_text, pooled_regions, pooled)

    def join(self, text: Embedded, regions: Embedded) -> tuple[Tensor, Tensor]:
        """What the first sublayer that sees both streams gets: text [B, L, hidden] and regions [B, R, hidden]."""
        return text.vectors, regions.vectors

    def run(
        self,
        words: Tensor,
        visual: Tensor,
        text_mask: Tensor,
        region_mask: Tensor,
        first: int = 0,
        last: int | None = None,
        pooled_only: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Both embedded streams, text first, through the sublayers first to last - 1."""
        steps = range(len(self.blocks))[first:last]
        if self.config.joint:
            joint, mask = torch.cat((words, visual), 1), torch.cat((text_mask, region_mask), 1)
            joint = self.run_joint(joint, mask, steps, [0, words.shape[1]] if pooled_only else None)
            split = 1 if pooled_only else words.shape[1]
            return joint[:, :split], joint[:, split:]
        streams, masks = {TEXT: words, IMAGE: visual}, {TEXT: text_mask, IMAGE: region_mask}
        for n in steps:
            only = (True,) if pooled_only and n == self.config.last_attention else ()
            streams = self._call(self.blocks[n], streams, masks, *only)
        return streams[TEXT], streams[IMAGE]

    def run_joint(self, joint: Tensor, mask: Tensor, steps: Iterable[int], rows: list[int] | None = None) -> Tensor:
        """[B, N, hidden] through the sublayers `steps`; past the last attention only the rows asked for."""
        for n in steps:
            only = (rows,) if rows and n == self.config.last_attention else ()
            joint = self._call(self.blocks[n].joint, joint, mask, *only)
        return joint

    def _alone(self, stream: str, vectors: Tensor, mask: Tensor) -> Tensor:
        streams = {stream: vectors}
        for block in self.blocks[: self.config.first_crossing]:
            streams = self._call(block, streams, {stream: mask})
        return streams[stream]

    def _call(self, step, *args):
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(step, *args, use_reentrant=False)
        return step(*args)

    def check_pair(self, text: Embedded, regions: Embedded) -> None:
        shapes = tuple(text.mask.shape), tuple(regions.mask.shape)
        check_pair(self.config, *shapes, self.positions_needed(shapes[0][1], shapes[1][1]))

    def positions_needed(self, length: int, slots: int) -> int:
        """Rows of the position table that texts of this length need beside that many region slots."""
        return length

    def volta_modules(self) -> Modules:
        """Each module that has parameters, with its names in checkpoints, the canonical one first."""
        return volta_modules(self)

    @staticmethod
    def read_volta(config: Mapping, family: str, shapes: Shapes) -> dict:
        """Fields of `EncoderConfig` from a Volta configuration and the shapes in a state dict."""
        return read_bert(config, family, shapes)

    @staticmethod
    def suited(config: EncoderConfig, state: Mapping[str, Tensor]) -> EncoderConfig:
        """The configuration, with what this kind of encoder learns from the checkpoint alone."""
        return config

    def to_volta(self) -> dict[str, Tensor]:
        """The weights under every name that Volta's state dict has, ties included; tied names share memory."""
        return {name: tensor.detach() for names, tensor in self.volta_parameters() for name in names}

    def volta_parameters(self) -> list[tuple[tuple[str, ...], nn.Parameter]]:
        """Each parameter with its names in Volta, the canonical one first."""
        names = volta_names(self)
        return [(names[own], parameter) for own, parameter in self.named_parameters()]
