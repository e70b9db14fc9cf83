"""LXMERT (Tan and Bansal, EMNLP 2019) as VSR fine-tunes it (Liu et al., TACL 2023): the pretrained head that tells
whether a text is of a picture goes on as the classifier.

    extract coco/ -o coco.roi --model frcnn-vg-hf
    finetune --encoder lxmert-vsr --task vsr --store coco.roi --annotations DIR
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cache import Regions

from ..recipes import Recipe
from ..tasks import Example
from .base import Batch
from .labelling import Labelling, check_regions, regions_of

MOST_REGIONS = 36


class LxmertVsr(Labelling):
    name = "lxmert-vsr"
    source = "unc-nlp/lxmert-base-uncased"
    tokenizer_source = "unc-nlp/lxmert-base-uncased"
    network_class = "LxmertForPreTraining"
    recipe = Recipe(
        lr=1e-5, batch=32, epochs=100, weight_decay=0.01, clip=None, max_tokens=32, validate_every=100,
        optimizer="torch", constant=True,
    )  # fmt: skip

    def look_at(self, picture: Regions) -> None:
        check_regions(self.name, picture, self.network.config.visual_feat_dim, "frcnn-vg-hf")

    def batch(self, examples: Sequence[Example], pictures: Sequence[Regions], max_tokens: int) -> Batch:
        ids, mask = self.text([one.text for one in examples], max_tokens)
        return Batch.of(ids, mask, *regions_of(pictures, MOST_REGIONS))

    def forward(self, ids: Tensor, mask: Tensor, features: Tensor, boxes: Tensor, present: Tensor) -> Tensor:
        """`cross_relationship_score` of the network, without the pretraining heads that it is told beside."""
        found = self.network.lxmert(
            input_ids=ids, attention_mask=mask, visual_feats=features, visual_pos=boxes, visual_attention_mask=present
        )
        return self.network.cls.seq_relationship(found.pooled_output)
