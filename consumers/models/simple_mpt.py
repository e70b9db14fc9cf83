"""Simple MPT (Changpinyo et al., Findings of EMNLP 2023, appendix C): one mT5 that answers in the language it is told.

    finetune --encoder simple-mpt --task maxm --train-on vqa2 --language all --store patches.roi ...

`simple-mpt` reads patches of a store, which stay as they are; `simple-mpt-pixels` trains its ViT as well, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from cache import UsageError

from ..recipes import Recipe
from ..tasks import Example, Task
from .base import Batch, Model, companion
from .patch_mt5 import TEXT, VISION, load_mt5_tokenizer, load_patch_mt5, patches_of
from .writing import Words, target_of

MT5, VIT = "google/mt5-large", "google/vit-large-patch16-224-in21k"
ANSWER_TOKENS = 8
RECIPE = Recipe(
    lr=1e-3, batch=512, epochs=1000, scheduled=1000, most_updates=100_000, warmup_updates=1000, weight_decay=0.0,
    clip=None, max_tokens=24, validate_every=1000, optimizer="adafactor",
)  # fmt: skip


class SimpleMpt(Model):
    """Patches of a store and "Answer in fr: QUESTION" to an answer in French.

    The published model was trained for 100,000 updates of 512 questions in 13 languages, texts of 24 tokens and answers
    of 8, by Adafactor without momentum (second moments decay with exponent 0.8) at 1e-3 after 1,000 updates of warm-up,
    falling with the inverse square root. mT5's dropout is 0.1, and ViT's 0, as their configurations have it.
    """

    name = "simple-mpt"
    source = MT5
    tasks = ("maxm", "xgqa", "gqa", "vqa2", "vq2a-coco", "vq2a-cc3m")
    recipe = RECIPE
    writes = True
    answer_tokens: ClassVar[int] = ANSWER_TOKENS
    vision: ClassVar[str | None] = None

    def __init__(self, source: str, tokenizer: str | None):
        super().__init__()
        self.network = load_patch_mt5(source, self.vision)
        self.tokenizer = load_mt5_tokenizer(source, tokenizer, MT5)
        if len(self.tokenizer) > (words := self.network.text.config.vocab_size):
            raise UsageError(
                f"the tokenizer has {len(self.tokenizer)} tokens and the mT5 of {source} {words}: give the tokenizer "
                "that the mT5 was made with (--tokenizer)"
            )
        self.report = self.network.report

    @classmethod
    def load(cls, source: str, task: Task | None, tokenizer: str | None, legacy: bool) -> SimpleMpt:
        return cls(source, tokenizer)

    def look_at(self, picture: Any) -> None:
        self.network.fit(picture.features.shape[1])

    def forward(self, *batch: Tensor) -> Tensor:
        return self.network(*batch)

    def batch(self, examples: Sequence[Example], pictures: Sequence[Any], max_tokens: int) -> Batch:
        texts = [self.prompt(one) for one in examples]
        read = self.tokenizer(texts, truncation=True, max_length=max_tokens, padding=True, return_tensors="pt")
        seen, present = self.seen(pictures)
        return Batch.of(seen, present, read["input_ids"], read["attention_mask"], self._target(examples))

    def prompt(self, example: Example) -> str:
        """What it is told."""
        return f"Answer in {example.answered_in}: {example.text.strip()}"

    def seen(self, pictures: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """What the network reads of pictures, and which of it is there."""
        return patches_of(pictures)

    def objective(self, task: Task) -> Words:
        return Words(self._target)

    def _target(self, examples: Sequence[Example]) -> Tensor:
        return target_of(self.tokenizer, [one.answer for one in examples], self.answer_tokens)

    def answers(self, batch: Batch, task: Task) -> list[str]:
        seen, present, ids, mask, _ = batch
        found = self.network.generate(seen, present, ids, mask, self.answer_tokens)
        return [one.strip() for one in self.tokenizer.batch_decode(found, skip_special_tokens=True)]

    def save(self, folder: Path) -> None:
        self.network.save(folder, **{TEXT: self.tokenizer})


class SimpleMptPixels(SimpleMpt):
    """The same from pixels, whose ViT is trained with the rest: folders of it hold `mt5` and `vision`."""

    name = "simple-mpt-pixels"
    reads = "images"
    vision = VIT

    def __init__(self, source: str, tokenizer: str | None):
        from transformers import AutoImageProcessor

        super().__init__(source, tokenizer)
        beside = Path(source) / VISION
        there = (beside / "preprocessor_config.json").is_file()
        self.processor = companion(AutoImageProcessor, str(beside) if there else self.vision)

    def look_at(self, picture: Any) -> None:
        pass

    def seen(self, pictures: Sequence[Any]) -> tuple[Tensor, Tensor]:
        pixels = self.processor(images=list(pictures), input_data_format="channels_last", return_tensors="pt")
        return pixels["pixel_values"], torch.ones(len(pictures), 1, dtype=torch.bool)

    def save(self, folder: Path) -> None:
        self.network.save(folder, **{TEXT: self.tokenizer, VISION: self.processor})
