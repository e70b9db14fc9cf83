"""Captions written from the patches of a store: mT5 reads them, and is told in which language to write.

finetune --encoder mt5-captions --task xm3600-captions --store flickr30k-patches.roi --annotations DIR
evaluate --encoder mt5-captions --checkpoint runs/.../best --task xm3600-captions --store xm3600-patches.roi ...
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..recipes import Recipe
from ..tasks import Example, Task
from .simple_mpt import SimpleMpt
from .writing import IGNORED, Words


class PatchCaptions(SimpleMpt):
    """A baseline that can be run: Simple MPT's network, told "Caption in de:".

    Its recipe is Simple MPT's with smaller batches and fewer updates; none was published.
    """

    name = "mt5-captions"
    source = "google/mt5-base"
    tasks = ("xm3600-captions",)
    recipe = Recipe(
        lr=1e-3, batch=64, accumulate=4, epochs=10, scheduled=10, warmup_updates=1000, weight_decay=0.0, max_tokens=16,
        optimizer="adafactor",
    )  # fmt: skip
    answer_tokens: ClassVar[int] = 64

    def prompt(self, example: Example) -> str:
        return f"Caption in {example.answered_in}:"

    def objective(self, task: Task) -> Words:
        return Captions(self._target)


class Captions(Words):
    """Captions are many, and hardly one is said word by word: the best weights are those that get most words right."""

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Of each text the share of the words that are the likeliest, given those before; their sum."""
        known = target != IGNORED
        return (((logits.argmax(-1) == target) & known).sum(1) / known.sum(1)).sum()
