"""Scoring every text with every image: each is embedded once, pairs are made of the embedded ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .encoder import Embedded, Encoder


@torch.inference_mode()
def score_pairs(
    encoder: Encoder,
    texts: Embedded | Sequence[Callable[[range], Embedded]],
    regions: Embedded,
    head: str = "retrieval",
    images_per_batch: int = 128,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Logits [T, I] of a one-logit head for T texts and I images, on the encoder's device.

    `texts` and `regions` come from `encoder.embed_text` and `encoder.embed_regions` (batches of them through
    `Embedded.concatenated`). A batch is one text, cut to its own length, with many images, so no batch holds padding of
    text. Where a text differs by the image, `texts` has for each a function from places of images to what
    `encoder.embed_text` makes of it. `progress` is called with the number of pairs done. For bfloat16 call it, and
    embed, under torch.autocast.
    """
    scorer = encoder.head(head)
    scores = torch.empty(len(texts), len(regions), device=regions.vectors.device)
    for row in range(len(texts)):
        text = texts[row : row + 1].trimmed() if isinstance(texts, Embedded) else texts[row]
        for start in range(0, len(regions), images_per_batch):
            images = regions[start : start + images_per_batch]
            batch = text(range(start, start + len(images))) if callable(text) else text.expanded(len(images))
            logits = scorer(encoder.fuse(batch, images, pooled_only=True))
            scores[row, start : start + len(images)] = logits.squeeze(1)
            if progress:
                progress(row * len(regions) + start + len(images))
    return scores
