"""ViLT (Kim et al., ICML 2021) as VSR fine-tunes it (Liu et al., TACL 2023): from pixels, with a fresh classifier.

    finetune --encoder vilt --task vsr --images coco/ --annotations DIR

`legacy` reads pictures as the published code does: blue for red, text padded to the longest allowed in training and to
the longest of the batch in testing, and the padding of both sides attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cache import DataError

from ..recipes import Recipe
from ..tasks import Example, Task
from .base import Batch, companion
from .labelling import Labelling, keep

PROCESSOR_FILE = "preprocessor_config.json"


class Vilt(Labelling):
    name = "vilt"
    source = "dandelin/vilt-b32-mlm"
    tokenizer_source = "dandelin/vilt-b32-mlm"
    network_class = "ViltForImagesAndTextClassification"
    options = {"num_labels": 2, "num_images": 1}
    reads = "images"
    recipe = Recipe(
        lr=1e-5, batch=12, epochs=30, weight_decay=0.01, clip=None, max_tokens=40, validate_every=100,
        optimizer="torch", constant=True,
    )  # fmt: skip

    def __init__(self, source: str, tokenizer: str | None = None, legacy: bool = False):
        from transformers import AutoImageProcessor

        super().__init__(source, tokenizer, legacy)
        folder = Path(source)
        known = (folder / PROCESSOR_FILE).is_file() or not folder.is_dir()
        self.processor = companion(AutoImageProcessor, source if known else self.source)

    def batch(self, examples: Sequence[Example], pictures: Sequence[np.ndarray], max_tokens: int) -> Batch:
        ids, mask = self.text([one.text for one in examples], max_tokens, "max_length" if self.legacy else True)
        pixels = [np.ascontiguousarray(one[..., ::-1]) for one in pictures] if self.legacy else list(pictures)
        try:
            seen = self.processor(images=pixels, input_data_format="channels_last", return_tensors="pt")
        except ValueError as error:  # a side would be less than a patch
            ratios = [max(one.shape[:2]) / min(one.shape[:2]) for one in pictures]
            key = examples[int(np.argmax(ratios))].images[0][0]
            raise DataError(
                f"{key!r} cannot be prepared for ViLT: one side is {max(ratios):.1f} times the other"
            ) from error
        return Batch.of(ids, mask, seen["pixel_values"], seen["pixel_mask"])

    def forward(self, ids: Tensor, mask: Tensor, pixels: Tensor, pixel_mask: Tensor) -> Tensor:
        if self.legacy:
            mask, pixel_mask = torch.ones_like(mask), torch.ones_like(pixel_mask)
        return self.network(
            input_ids=ids, attention_mask=mask, pixel_values=pixels, pixel_mask=pixel_mask[:, None]
        ).logits

    def answers(self, batch: Batch, task: Task) -> list[str]:
        ids, mask, *seen = batch
        longest = int(mask.sum(1).max())
        return super().answers(Batch.of(ids[:, :longest], mask[:, :longest], *seen), task)

    def save(self, folder: Path) -> None:
        keep(folder, self.network, self.tokenizer, self.processor)
