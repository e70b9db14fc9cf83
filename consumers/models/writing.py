"""Models that write answers: how they are trained, word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..objectives import Pairs
from ..tasks import Example

IGNORED = -100  # in the place of words that are no target


class Words:
    """Each example has one text to write; a pair of pictures is none.

    Args:
        target: the words of the texts of examples, i64 [B, T], IGNORED behind their ends.
    """

    def __init__(self, target: Callable[[Sequence[Example]], Tensor]):
        self._target = target

    def pairs(self, data: Any, rows: Sequence[int], rng: np.random.Generator) -> Pairs:
        images = data.images[list(rows), 0]
        return Pairs(list(rows), images.tolist(), self._target([data.examples[row] for row in rows]))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, the mean over all words of the batch."""
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Texts of which each word is the likeliest: those that would be written, the likeliest word at a time."""
        return ((logits.argmax(-1) == target) | (target == IGNORED)).all(1).sum()


def target_of(tokenizer: Any, texts: Sequence[str], most: int) -> Tensor:
    """Ids of texts with the token that ends each, i64 [B, T], cut at `most` and IGNORED behind their ends."""
    found = tokenizer(list(texts), truncation=True, max_length=most, padding=True, return_tensors="pt")
    return torch.where(found["attention_mask"].bool(), found["input_ids"], IGNORED)
