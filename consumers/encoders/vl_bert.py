"""VL-BERT's embeddings (Su et al., ICLR 2020): a word carries a visual feature, and a region a word."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import EncoderConfig
from .encoder import Embedded, Encoder
from .text_embedding import TextEmbedding


def coordinate_sines(boxes: Tensor, dim: int) -> Tensor:
    """[..., 4] corners in 0..1 -> [..., 8 * dim]: sines, then cosines, of centre x, centre y, width and height (each
    times 100) at `dim` wavelengths from 1 to 1000."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    box = torch.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), -1) * 100
    wavelengths = 1000 ** (torch.arange(dim, dtype=boxes.dtype, device=boxes.device) / dim)
    angles = box[..., None] / wavelengths
    return torch.cat((angles.sin(), angles.cos()), -1).flatten(-2)


class VlBertImage(nn.Module):
    """The visual vector of each region, from its feature and its box. A feature of all zeros means a masked region."""

    VOLTA = {
        "feature": "bert.embeddings.obj_downsample.1",
        "object": "bert.embeddings.object_linguistic_embeddings",
        "masked": "bert.embeddings.object_mask_visual_embedding",
        "end": "bert.embeddings.end_embedding",
        "text_norm": "bert.embeddings.visual_ln_text",
        "object_norm": "bert.embeddings.visual_ln_object",
    }

    def __init__(self, config: EncoderConfig):
        super().__init__()
        hidden = config.image.hidden
        self.coordinate_dim = config.coordinate_dim
        self.feature = nn.Linear(config.feature_dim + 8 * config.coordinate_dim, hidden)
        self.object = nn.Embedding(1, hidden)
        self.masked = nn.Embedding(1, config.feature_dim)
        self.end = nn.Embedding(1, hidden)
        self.text_norm = nn.LayerNorm(hidden, config.norm_eps)
        self.object_norm = nn.LayerNorm(hidden, config.norm_eps)
        self.drop_input = nn.Dropout(config.image.attention_dropout)

    def forward(self, features: Tensor, locations: Tensor, text_embed: TextEmbedding) -> Tensor:
        """[B, R, feature_dim], [B, R, >= 4] -> [B, R, hidden]"""
        empty = (features == 0).all(-1, keepdim=True)
        features = torch.where(empty, self.masked.weight[0], features)
        sines = coordinate_sines(locations[..., :4], self.coordinate_dim)
        return F.relu(self.feature(self.drop_input(torch.cat((sines, features), -1))))


class VlBert(Encoder):
    """Words and regions get their common input in `join`.

    Published quirks, reproduced under `legacy`: the words' visual feature and the end embedding belong to the last slot
    of the padded tensor, here to the sample's last region; word positions jump by the number of region slots behind the
    shortest text of the batch, here never.
    """

    def image_embedding(self) -> nn.Module:
        return VlBertImage(self.config)

    def text_vectors(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        return self.text_embed.word(input_ids)

    def join(self, text: Embedded, regions: Embedded) -> tuple[Tensor, Tensor]:
        visual, slots = regions.vectors, regions.mask.shape[1]
        slot = torch.arange(slots, device=visual.device)
        last = torch.full_like(text.lengths, slots - 1) if self.legacy else (slot * regions.mask).amax(1)
        is_last = slot == last[:, None]
        table, embed = self.text_embed, self.image_embed

        places = torch.arange(text.mask.shape[1], device=visual.device).expand(text.mask.shape)
        if self.legacy:
            places = places + slots * (places >= text.lengths.min())
        scene = embed.text_norm(visual[torch.arange(len(visual), device=visual.device), last])
        words = table.finish(text.vectors + scene[:, None] + table.position(places) + table.segment.weight[0])

        spoken = torch.where(is_last[..., None], embed.end.weight[0], embed.object.weight[0])
        place = table.position(text.lengths[:, None] + is_last)
        return words, table.finish(embed.object_norm(visual) + spoken + place + table.segment.weight[2])

    def positions_needed(self, length: int, slots: int) -> int:
        return length + 2 + (slots if self.legacy else 0)
