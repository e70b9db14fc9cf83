"""Published models of transformers that look at a picture and write the answer to a question, used as they are.

evaluate --encoder blip2 --task maxm --images DIR --language fr                                 not adapted
evaluate --encoder blip2 --task maxm --store STORE --language fr        what extract --model blip2:... left
evaluate --encoder blip2 --task maxm --images DIR --language fr --setup translate-test --translate FILE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cache import Regions, StoreMismatch, UsageError

from ..tasks import Example, Task
from .base import Batch, Model, companion, pretrained, quiet
from .image_side import check_store, take_either


class Answering(Model):
    """What they have in common. Questions are not cut.

    Pixels are prepared by the image processors on Pillow, as extractors do it: a store and the pictures that it is of
    are answered alike, but for what its number format leaves out.

    Attributes:
        network_class, processor_class: names in transformers.
        generation: options of `generate`.
    """

    tasks = ("maxm", "xgqa", "gqa", "vqa2", "vq2a-coco", "vq2a-cc3m")
    reads = "either"
    writes = True
    network_class: ClassVar[str]
    processor_class: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("pixel_values", "input_ids", "attention_mask")
    generation: ClassVar[Mapping[str, Any]]

    def __init__(self, source: str, tokenizer: str | None):
        import transformers

        super().__init__()
        self.network, self.report = pretrained(getattr(transformers, self.network_class), source)
        self.processor = companion(getattr(transformers, self.processor_class), tokenizer or source)
        self.processor.image_processor = companion(transformers.AutoImageProcessor, tokenizer or source, backend="pil")
        self._source, vision = source, self.network.config.vision_config
        self._patches = ((vision.image_size // vision.patch_size) ** 2, vision.hidden_size)
        take_either(self.tower)

    @classmethod
    def load(cls, source: str, task: Task | None, tokenizer: str | None, legacy: bool) -> Answering:
        return cls(source, tokenizer)

    @property
    def tower(self) -> Any:
        """The module that looks at pixels."""
        raise NotImplementedError

    def prompt(self, example: Example) -> str:
        """What it is asked."""
        raise NotImplementedError

    def said(self, record: Regions) -> list[np.ndarray]:
        """What its tower says of a picture, in parts [P, d], of a record of its extractor. Raises: StoreMismatch."""
        if record.features.shape != self._patches:
            raise StoreMismatch(
                f"{self.name} reads {self._patches[0]} patches of {self._patches[1]} numbers, and {record.key!r} has "
                f"{len(record.features)} of {record.features.shape[1]}: extract with --model {self.name}:{self._source}"
            )
        return [record.features]

    def check_store(self, made_with: Mapping[str, Any]) -> list[str]:
        return check_store(self.name, self._source, made_with)

    def look_at(self, picture: Any) -> None:
        if isinstance(picture, Regions):
            self.said(picture)

    def batch(self, examples: Sequence[Example], pictures: Sequence[Any], max_tokens: int) -> Batch:
        from PIL import Image

        texts, stored = [self.prompt(one) for one in examples], isinstance(pictures[0], Regions)
        # processors leave room for a picture in the texts if there is one, whatever is in it
        images = [Image.new("RGB", (2, 2)) if stored else Image.fromarray(picture) for picture in pictures]
        with quiet():
            made = self.processor(images=images, text=texts, padding=True, return_tensors="pt")
        if stored:
            said = [np.concatenate(self.said(one), dtype=np.float32, casting="unsafe") for one in pictures]
            made["pixel_values"] = torch.from_numpy(np.stack(said))
        return Batch.of(*(made[name] for name in self.inputs))

    def answers(self, batch: Batch, task: Task) -> list[str]:
        given: dict[str, Tensor] = dict(zip(self.inputs, batch, strict=True))
        found = self.network.generate(**given, do_sample=False, **self.generation)
        if not self.network.config.get_text_config().is_encoder_decoder:  # it repeats what it was asked
            found = found[:, given["input_ids"].shape[1] :]
        return [text.strip() for text in self.processor.batch_decode(found, skip_special_tokens=True)]

    def objective(self, task: Task) -> Any:
        raise UsageError(f"{self.name} is used as it is, and not fine-tuned")

    def save(self, folder: Path) -> None:
        with quiet():
            self.network.save_pretrained(folder)
        self.processor.save_pretrained(folder)


class Blip2(Answering):
    """BLIP-2 (Li et al., ICML 2023), asked and decoded as its authors do for VQA; MaXM's paper fine-tuned one of 11
    billion parameters on VQA 2.0, which is not published: this is the one it began with."""

    name = "blip2"
    source = "Salesforce/blip2-flan-t5-xxl"
    network_class, processor_class = "Blip2ForConditionalGeneration", "Blip2Processor"
    generation = {"max_new_tokens": 10, "min_new_tokens": 1, "num_beams": 5, "length_penalty": -1.0}

    def __init__(self, source: str, tokenizer: str | None):
        super().__init__(source, tokenizer)
        config = self.network.config
        self.processor.num_query_tokens = config.num_query_tokens
        if not config.get_text_config().is_encoder_decoder:
            self.processor.tokenizer.padding_side = "left"
        if config.image_token_id is None:  # of folders older than transformers 4.46
            config.image_token_id = self.processor.tokenizer.convert_tokens_to_ids(self.processor.image_token.content)
            self.network.resize_token_embeddings(len(self.processor.tokenizer))

    @property
    def tower(self) -> Any:
        return self.network.vision_model

    def said(self, record: Regions) -> list[np.ndarray]:
        patches, whole = super().said(record), record.global_features
        if whole is None or len(whole) != self._patches[1]:
            raise StoreMismatch(
                f"{self.name} reads the class token before the patches, and {record.key!r} has none in its "
                f"global_features: extract with --model {self.name}:{self._source}"
            )
        return [whole[None], *patches]

    def prompt(self, example: Example) -> str:
        return f"Question: {example.text.strip()} Short answer:"


class PaliGemma(Answering):
    """PaliGemma (Beyer et al., 2024), the open relative of PaLI, whose weights were never published. It is asked in the
    language that it shall answer in, which it knows by the codes of MaXM."""

    name = "paligemma"
    source = "google/paligemma-3b-mix-224"
    network_class, processor_class = "PaliGemmaForConditionalGeneration", "PaliGemmaProcessor"
    inputs = (*Answering.inputs, "token_type_ids")
    generation = {"max_new_tokens": 20, "num_beams": 1}

    def __init__(self, source: str, tokenizer: str | None):
        super().__init__(source, tokenizer)
        self.processor.tokenizer.padding_side = "left"

    @property
    def tower(self) -> Any:
        return self.network.model.vision_tower

    def prompt(self, example: Example) -> str:
        return f"<image>answer {example.answered_in} {example.text.strip()}"
