"""Networks of transformers that label a text and a picture: loaded, fine-tuned with cross-entropy, kept in one way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cache import Regions, StoreMismatch
from cache.collate import Collation

from ..objectives import Labels
from ..tasks import Task
from .base import Model, companion, pretrained, quiet

VSR_TASKS = ("vsr", "vsr-zeroshot", "vsr-left-right", "vsr-frames")
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "vocab.txt")


class Labelling(Model):
    """A network with a logit for each label.

    Attributes:
        network_class: its name in transformers.
        tokenizer_source: hub id of the published tokenizer, for sources that have none.
        options: how the network is configured beyond its source.
    """

    tasks = VSR_TASKS
    network_class: ClassVar[str]
    tokenizer_source: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, source: str, tokenizer: str | None = None, legacy: bool = False):
        import transformers

        super().__init__()
        self.network, self.report = pretrained(getattr(transformers, self.network_class), source, **self.options)
        known = any((Path(source) / name).is_file() for name in TOKENIZER_FILES)
        self.tokenizer = companion(
            transformers.AutoTokenizer, tokenizer or (source if known else self.tokenizer_source)
        )
        self.legacy = legacy

    @classmethod
    def load(cls, source: str, task: Task | None, tokenizer: str | None, legacy: bool) -> Labelling:
        return cls(source, tokenizer, legacy)

    def text(self, texts: Sequence[str], max_tokens: int, padding: bool | str = True) -> tuple[Tensor, Tensor]:
        """Ids and mask [B, L], L the longest of them, or `max_tokens` for the padding "max_length"."""
        found = self.tokenizer(
            list(texts), truncation=True, max_length=max_tokens, padding=padding, return_tensors="pt"
        )
        return found["input_ids"], found["attention_mask"]

    def objective(self, task: Task) -> Labels:
        return Labels(task, F.cross_entropy)

    def save(self, folder: Path) -> None:
        keep(folder, self.network, self.tokenizer)


def keep(folder: Path, *parts: Any) -> None:
    """What `save_pretrained` of each of the parts writes, in a folder of which each file is replaced as a whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with quiet():
        for part in parts:
            part.save_pretrained(partial)
    folder.mkdir(parents=True, exist_ok=True)
    for file in partial.iterdir():
        os.replace(file, folder / file.name)
    partial.rmdir()


def regions_of(pictures: Sequence[Regions], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first regions of pictures, as the detector ranked them: features f32 [B, R, d], their boxes as shares of the
    picture f32 [B, R, 4], and which there are i64 [B, R]; R is 1 at least."""
    batch = Collation(max_regions=most, num_locations=4)(pictures)
    features, boxes, mask = batch.features, batch.locations, batch.mask.long()
    if features.shape[1]:
        return features, boxes, mask
    count, dim = len(pictures), features.shape[2]
    return torch.zeros(count, 1, dim), torch.zeros(count, 1, 4), torch.zeros(count, 1, dtype=torch.long)


def check_regions(name: str, picture: Regions, wanted: int, preset: str) -> None:
    """Raises: StoreMismatch: the regions of a picture are not those that the preset's detector gives."""
    if picture.features.shape[1] != wanted:
        raise StoreMismatch(
            f"{name} reads features of dimension {wanted}, but {picture.key!r} has {picture.features.shape[1]}: "
            f"extract with the detector that it was trained with (--model {preset})"
        )
