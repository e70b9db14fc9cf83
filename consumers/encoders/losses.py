"""The losses that the published encoders were fine-tuned with (Volta, Bugliarello et al. 2021)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def mean_binary(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of logits and targets [B, C], averaged over both axes (XVNLI, NLVR2)."""
    return F.binary_cross_entropy_with_logits(logits, target)


def summed_binary(logits: Tensor, target: Tensor) -> Tensor:
    """The same, summed over the labels and averaged over the batch (GQA's soft answers)."""
    return F.binary_cross_entropy_with_logits(logits, target) * target.shape[1]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of logits [B, C] and class indices [B] (VSR; retrieval over the options of an item)."""
    return F.cross_entropy(logits, target)


def triplet(logits: Tensor, margin: float = 0.2) -> Tensor:
    """Of the options [B, C] of retrieval items, the first is the right one: the mean hinge by which each other's
    probability comes within `margin` of it (UC2)."""
    scores = logits.sigmoid()
    return F.relu(margin + scores[:, 1:] - scores[:, :1]).mean()


def correct(logits: Tensor, target: Tensor) -> Tensor:
    """Sum over the batch of the target [B, C] at the highest logit: hits, or soft credit where targets are soft."""
    return target.gather(1, logits.argmax(1, keepdim=True)).sum()
