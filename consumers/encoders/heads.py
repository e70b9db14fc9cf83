"""Task heads: the pooled vector of a pair to logits.

| head | logits | layers | Volta task |
|---|---|---|---|
| xvnli | contradiction, neutral, entailment | one linear | TASK19 |
| gqa | one per answer | two linears | TASK15 |
| nlvr2 | false, true; of two images | two linears | TASK12 |
| retrieval | match | one linear | TASK8 (Flickr30k) or TASK20 (WIT) |
| vsr | false, true | two linears | TASK21, a number that Volta's tasks leave free |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from cache import UsageError

from .config import EncoderConfig
from .inputs import InputError

if TYPE_CHECKING:
    from .encoder import EncoderOutput


@dataclass(frozen=True)
class HeadSpec:
    labels: int
    volta_tasks: tuple[str, ...]
    deep: bool = False  # two linears with a GELU and a layer norm between them
    images: int = 1


HEADS = {
    "xvnli": HeadSpec(3, ("TASK19",)),
    "gqa": HeadSpec(1842, ("TASK15",), deep=True),
    "nlvr2": HeadSpec(2, ("TASK12",), deep=True, images=2),
    "retrieval": HeadSpec(1, ("TASK8", "TASK20")),
    "vsr": HeadSpec(2, ("TASK21",), deep=True),
}


class Head(nn.Module):
    """`head(output)` -> logits [B, labels]; with two images per text [B / 2, labels], where items 2i and 2i + 1 of the
    batch are the images of text i. `roots` are the beginnings of the names that it may have in checkpoints, `root` is
    the one in use."""

    def __init__(self, config: EncoderConfig, name: str, labels: int):
        super().__init__()
        spec = HEADS[name]
        self.name, self.images, self.deep = name, spec.images, spec.deep
        self.roots = tuple(f"clfs_dict.{task}" for task in spec.volta_tasks)
        self.root = self.roots[0]
        width = config.pool_size * spec.images
        self.drop = nn.Dropout(config.text.dropout)
        if spec.deep:
            self.hidden = nn.Linear(width, config.classifier_size)
            self.norm = nn.LayerNorm(config.classifier_size, config.norm_eps)
            width = config.classifier_size
        self.logits = nn.Linear(width, labels)

    def forward(self, output: EncoderOutput) -> Tensor:
        pooled = self.of_all_images(self.drop(output.pooled))
        if self.deep:
            pooled = self.norm(F.gelu(self.hidden(pooled)))
        return self.logits(pooled)

    def of_all_images(self, pooled: Tensor) -> Tensor:
        """Pooled vectors [B, P] of pairs -> those of all images of a text in a row [B / images, images P]"""
        if pooled.shape[0] % self.images:
            wanted = f"(a multiple of {self.images}, {pooled.shape[1]})"
            raise InputError("pooled", pooled, wanted, f"{self.name} looks at {self.images} images per text")
        return pooled.reshape(-1, pooled.shape[1] * self.images)

    def volta_modules(self) -> dict[str, str]:
        """Own module name -> name in checkpoints."""
        if not self.deep:
            return {"logits": self.root}
        fc = f"{self.root}.logit_fc"
        return {"hidden": f"{fc}.0", "norm": f"{fc}.2", "logits": f"{fc}.3"}


def head_labels(heads: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Head names, or names with their numbers of labels, -> {name: labels}. Raises UsageError for an unknown name."""
    if isinstance(heads, str):
        raise UsageError(f"heads is the text {heads!r}; give a sequence of names, as in heads=({heads!r},)")
    unknown = [name for name in heads if name not in HEADS]
    if unknown:
        raise UsageError(f"unknown heads {', '.join(map(repr, unknown))}; choose from {', '.join(HEADS)}")
    return dict(heads) if isinstance(heads, Mapping) else {name: HEADS[name].labels for name in heads}
