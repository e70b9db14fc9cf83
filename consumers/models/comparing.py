"""Retrieval by embeddings that a store has of whole pictures (`global_features`), and embeddings of texts.

    extract xm3600/images -o clip.roi --model clip-vit-b32
    evaluate --encoder clip-retrieval --task xm3600 --store clip.roi --annotations DIR --language all
    evaluate --encoder embeddings --checkpoint texts.npz --task xm3600 --store clip.roi --annotations DIR

Texts go through the text side of the model whose image side extracted, or were embedded by whatever model, in a file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cache import DataError, InputNotFound, Regions, StoreMismatch, UsageError

from ..encoders.checkpoint import LoadReport
from ..objectives import Objective
from ..tasks import Example, Task
from .base import Batch, Model, companion, pretrained
from .labelling import keep

RETRIEVAL = ("xm3600", "flickr30k", "xflickrco", "wit", "multi30k")


class Comparing(Model):
    """A model that embeds texts where pictures are embedded; the nearer, the better they match."""

    tasks = RETRIEVAL
    dim: int

    def look_at(self, picture: Regions) -> None:
        found = picture.global_features
        if found is None or len(found) != self.dim:
            has = "none" if found is None else f"one of {len(found)} numbers"
            raise StoreMismatch(
                f"{self.name} compares texts with embeddings of pictures of {self.dim} numbers, but {picture.key!r} "
                f"has {has}: extract with the image side of the same model"
            )

    def pictures(self, records: Sequence[Regions]) -> np.ndarray:
        """Embeddings f32 [N, g] as a store has them."""
        return np.stack([one.global_features.astype(np.float32) for one in records])

    @abstractmethod
    def text_batch(self, examples: Sequence[Example], max_tokens: int) -> Batch:
        """What `texts` takes."""

    @abstractmethod
    def texts(self, batch: Batch) -> Tensor:
        """Embeddings [B, g]."""

    def batch(self, examples: Sequence[Example], pictures: Sequence[Regions], max_tokens: int) -> Batch:
        return Batch.of(*self.text_batch(examples, max_tokens), torch.from_numpy(self.pictures(pictures)))

    def forward(self, *batch: Tensor) -> Tensor:
        """Cosines f32 [B, 1] of texts and their pictures."""
        *texts, pictures = batch
        return torch.cosine_similarity(self.texts(Batch(texts)).float(), pictures.float())[:, None]

    def objective(self, task: Task) -> Objective:
        raise UsageError(f"{self.name} is used as it is, and not fine-tuned")


class TextSide(Comparing):
    """The text side of a published pair.

    Attributes:
        network_class: its name in transformers.
        longest: tokens that it reads.
        padded: it was trained on texts that are all filled up to that.
    """

    network_class: ClassVar[str]
    longest: ClassVar[int]
    padded: ClassVar[bool] = False

    def __init__(self, source: str, tokenizer: str | None):
        import transformers

        super().__init__()
        self.network, self.report = pretrained(getattr(transformers, self.network_class), source)
        self.tokenizer = companion(transformers.AutoTokenizer, tokenizer or source)
        self.dim = self.size()

    @classmethod
    def load(cls, source: str, task: Task | None, tokenizer: str | None, legacy: bool) -> TextSide:
        return cls(source, tokenizer)

    @abstractmethod
    def size(self) -> int:
        """Of its embeddings."""

    def text_batch(self, examples: Sequence[Example], max_tokens: int) -> Batch:
        most = min(self.longest, self.network.config.max_position_embeddings)
        found = self.tokenizer(
            [one.text for one in examples], truncation=True, max_length=most,
            padding="max_length" if self.padded else True, return_tensors="pt",
        )  # fmt: skip
        return Batch.of(found["input_ids"], found.get("attention_mask", torch.ones_like(found["input_ids"])))

    def save(self, folder: Path) -> None:
        keep(folder, self.network, self.tokenizer)


class ClipRetrieval(TextSide):
    """CLIP (Radford et al., ICML 2021): it was trained on English."""

    name = "clip-retrieval"
    source = "openai/clip-vit-base-patch32"
    network_class, longest = "CLIPTextModelWithProjection", 77

    def size(self) -> int:
        return self.network.config.projection_dim

    def texts(self, batch: Batch) -> Tensor:
        ids, mask = batch
        return self.network(input_ids=ids, attention_mask=mask).text_embeds


class SiglipRetrieval(TextSide):
    """SigLIP (Zhai et al., ICCV 2023), in the one of its models that was trained on texts of a hundred languages."""

    name = "siglip-retrieval"
    source = "google/siglip-base-patch16-256-multilingual"
    network_class, longest, padded = "SiglipTextModel", 64, True

    def size(self) -> int:
        return getattr(self.network.config, "projection_size", None) or self.network.config.hidden_size

    def texts(self, batch: Batch) -> Tensor:
        return self.network(input_ids=batch[0]).pooler_output  # as trained, what fills texts up is read as well


class GivenEmbeddings(Comparing):
    """Texts that were embedded before: an .npz file with `ids`, "LANGUAGE/ID" of each row, and `embeddings` f32 [n, g].

    Ids of rows are those of the task, such as "en/d89a4889331ce042#0" for the first English caption of a picture of
    XM3600.
    """

    name = "embeddings"
    source = ""

    def __init__(self, source: str):
        super().__init__()
        if not source:
            raise UsageError(f"{self.name} needs the embedded texts: --checkpoint FILE.npz")
        ids, table = _read(Path(source))
        self._source, self._rows = source, {name: row for row, name in enumerate(ids)}
        self.register_buffer("table", torch.from_numpy(table))
        self.dim = table.shape[1]
        self.report = LoadReport(source, ("embeddings",), (), (), ())

    @classmethod
    def load(cls, source: str, task: Task | None, tokenizer: str | None, legacy: bool) -> GivenEmbeddings:
        return cls(source)

    def text_batch(self, examples: Sequence[Example], max_tokens: int) -> Batch:
        names = [f"{one.answered_in}/{one.id}" for one in examples]
        if lost := [name for name in names if name not in self._rows]:
            raise DataError(f"{self._source} has no embedding of {len(lost):,} texts, such as {lost[0]!r}")
        return Batch.of(torch.tensor([self._rows[name] for name in names]))

    def texts(self, batch: Batch) -> Tensor:
        return self.table[batch[0]]

    def save(self, folder: Path) -> None:
        raise UsageError(f"{self.name} is a file, and not a model to keep")


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    """Raises: InputNotFound, DataError."""
    if not path.is_file():
        raise InputNotFound(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as held:
            ids, table = held["ids"], held["embeddings"]
    except Exception as error:  # a damaged archive raises whatever its readers do
        raise DataError(f"{path} is no .npz file with ids and embeddings: {error}") from error
    fits: Any = ids.ndim == 1 and ids.dtype.kind == "U" and table.ndim == 2 and table.dtype.kind == "f"
    if not fits or len(ids) != len(table) or len(set(ids.tolist())) != len(ids):
        raise DataError(f"{path} has ids {ids.dtype} {ids.shape} for embeddings {table.dtype} {table.shape}")
    if not np.isfinite(table).all():
        raise DataError(f"{path} has embeddings that are not finite")
    return ids.tolist(), table.astype(np.float32)
