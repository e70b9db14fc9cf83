"""CLIP (Radford et al., ICML 2021) without training, as VSR tests it (Liu et al., TACL 2023): a caption is true where
the picture is more like it than like its negation.

    extract coco/ -o coco.roi --model clip-vit-h14
    evaluate --encoder clip-negation --task vsr --store coco.roi --annotations DIR

Pictures are the embeddings that a store keeps as `global_features`; texts go through the text side of the same CLIP.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cache import Regions, StoreMismatch

from ..tasks import Example
from .base import Batch
from .labelling import Labelling
from .negation import negated


class ClipNegation(Labelling):
    name = "clip-negation"
    source = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    tokenizer_source = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    tasks = ("vsr", "vsr-zeroshot", "vsr-left-right")
    network_class = "CLIPTextModelWithProjection"

    def look_at(self, picture: Regions) -> None:
        wanted, found = self.network.config.projection_dim, picture.global_features
        if found is None or len(found) != wanted:
            has = "none" if found is None else f"one of {len(found)} numbers"
            raise StoreMismatch(
                f"{self.name} compares texts with embeddings of pictures of {wanted} numbers, but {picture.key!r} has "
                f"{has}: extract with the image side of the same CLIP (--model clip-vit-h14, or clip:FOLDER)"
            )

    def batch(self, examples: Sequence[Example], pictures: Sequence[Regions], max_tokens: int) -> Batch:
        texts = [one.text for one in examples]
        texts += [negated(one.text, one.facts["relation"]) for one in examples]
        ids, mask = (part.reshape(2, len(examples), -1).transpose(0, 1) for part in self.text(texts, max_tokens))
        seen = np.stack([one.global_features.astype(np.float32) for one in pictures])
        return Batch.of(ids, mask, torch.from_numpy(seen))

    def forward(self, ids: Tensor, mask: Tensor, seen: Tensor) -> Tensor:
        """Cosines of the pictures f32 [B, g] with the negations and the captions, ids and mask [B, 2, L] of which the
        first is the caption: f32 [B, 2]. Where both are alike the lower label, False, is the answer."""
        texts = self.network(input_ids=ids.flatten(0, 1), attention_mask=mask.flatten(0, 1)).text_embeds
        texts = F.normalize(texts.float(), dim=-1).reshape(*ids.shape[:2], -1)
        alike = (texts * F.normalize(seen.float(), dim=-1)[:, None]).sum(-1)
        return alike.flip(1)
