"""VisualBERT (Li et al., 2019) as VSR fine-tunes it (Liu et al., TACL 2023): regions of a COCO Mask R-CNN, no boxes.

    extract coco/ -o coco.roi --model vsr-visualbert
    finetune --encoder visualbert-vsr --task vsr --store coco.roi --annotations DIR

The published code stacks pictures, so that all need as many regions; here the missing ones are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cache import Regions

from ..recipes import Recipe
from ..tasks import Example
from .base import Batch
from .labelling import Labelling, check_regions, regions_of

MOST_REGIONS = 100


class VisualBertVsr(Labelling):
    name = "visualbert-vsr"
    source = "uclanlp/visualbert-nlvr2-coco-pre"
    tokenizer_source = "bert-base-uncased"
    network_class = "VisualBertForVisualReasoning"
    options = {"num_labels": 2}
    recipe = Recipe(
        lr=2e-6, batch=32, epochs=100, weight_decay=0.01, clip=None, max_tokens=32, validate_every=100,
        optimizer="torch", constant=True,
    )  # fmt: skip

    def look_at(self, picture: Regions) -> None:
        check_regions(self.name, picture, self.network.config.visual_embedding_dim, "vsr-visualbert")

    def batch(self, examples: Sequence[Example], pictures: Sequence[Regions], max_tokens: int) -> Batch:
        ids, mask = self.text([one.text for one in examples], max_tokens)
        features, _, present = regions_of(pictures, MOST_REGIONS)
        return Batch.of(ids, mask, features, present)

    def forward(self, ids: Tensor, mask: Tensor, features: Tensor, present: Tensor) -> Tensor:
        return self.network(
            input_ids=ids, attention_mask=mask, visual_embeds=features, visual_attention_mask=present,
            visual_token_type_ids=torch.ones_like(present),
        ).logits  # fmt: skip
