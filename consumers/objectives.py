"""What a batch of a task is made of, and its loss: the same for training and validation.

An objective turns places of examples into pairs of a text and a picture, and the logits of those pairs into a loss and
a score. Losses are those of the published encoders (`encoders.losses`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from cache import DataError

from .data import TaskData
from .encoders import EncoderConfig, losses
from .negatives import HardNegatives
from .tasks import Task

OPTIONS = 4  # of a retrieval item, the first of them right


class Pairs(NamedTuple):
    """Places of texts in `TaskData.examples` and of pictures in `TaskData.keys`, and the target of the items."""

    texts: list[int]
    images: list[int]
    target: Tensor

    def of(self, items: np.ndarray) -> Pairs:
        """Those of some of the items only, by their places."""
        each = len(self.texts) // len(self.target)
        places = [place for item in items.tolist() for place in range(item * each, (item + 1) * each)]
        return Pairs([self.texts[i] for i in places], [self.images[i] for i in places], self.target[items])


class Objective(Protocol):
    def pairs(self, data: TaskData, rows: Sequence[int], rng: np.random.Generator) -> Pairs:
        """The pairs of some examples."""

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean over the items."""

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Sum over the items of what was right."""


def objective_of(
    task: Task, config: EncoderConfig, negatives: HardNegatives | None = None, loss: str | None = None
) -> Objective:
    """How a task is trained: by the label of each example, or for retrieval by four options or by two pairs.

    `loss` is the name in `encoders.losses` of one for labels, None for that of the task's head.
    """
    if task.metric != "recall":
        return Labels(task, getattr(losses, loss) if loss else None)
    return Matches() if config.retrieval_loss == "binary" else Options(config, negatives)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "xvnli": losses.mean_binary,
    "nlvr2": losses.mean_binary,
    "gqa": losses.summed_binary,
    "vsr": losses.mean_binary,
}


class Labels:
    """Each example has its labels. A pair of pictures is two items of the batch, the text repeated. The loss, of logits
    and targets [B, labels], is the published one of the task's head unless another is given."""

    def __init__(self, task: Task, loss: Callable[[Tensor, Tensor], Tensor] | None = None):
        self._count, self._loss = len(task.labels), loss or LOSSES[task.head]

    def pairs(self, data: TaskData, rows: Sequence[int], rng: np.random.Generator) -> Pairs:
        images = data.images[list(rows)]
        target = torch.zeros(len(rows), self._count)
        for place, row in enumerate(rows):
            for label, score in data.examples[row].labels.items():
                target[place, label] = score
        return Pairs(np.repeat(rows, images.shape[1]).tolist(), images.ravel().tolist(), target)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return self._loss(logits, target)

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        return losses.correct(logits, target)


class Options:
    """Each caption comes with its picture and three wrong options: another picture's caption, another picture, and the
    caption of a picture that looks alike (or a random one where no `negatives` are given).

    The other picture is any one; the published training on WIT took that of the batch's next example, which in a
    shuffled order is any one, too. Where all captions are of one picture, the wrong options are other pictures of the
    store.
    """

    def __init__(self, config: EncoderConfig, negatives: HardNegatives | None):
        self._triplet, self._negatives = config.retrieval_loss == "triplet", negatives

    def pairs(self, data: TaskData, rows: Sequence[int], rng: np.random.Generator) -> Pairs:
        own = data.images[:, 0]
        texts, images = [], []
        for row in rows:
            image = int(own[row])
            others = len(data.keys) - 1
            if not others:
                raise DataError(f"retrieval needs wrong options, and the store has no picture beside {data.keys[0]!r}")
            if (own == image).all():
                wrong = rng.choice(others, 3, replace=others < 3)
                texts += [row] * OPTIONS
                images += [image, *(int(place + (place >= image)) for place in wrong)]
                continue
            alike = self._negatives.pick(image, rng) if self._negatives else None
            captions = (_caption_of_another(own, image, rng), _caption_of(own, alike, image, rng))
            other = int(rng.integers(others))
            texts += [row, captions[0], row, captions[1]]
            images += [image, image, other + (other >= image), image]
        return Pairs(texts, images, torch.zeros(len(rows), dtype=torch.long))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        options = logits.reshape(-1, OPTIONS)
        return losses.triplet(options) if self._triplet else losses.cross_entropy(options, target)

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits.reshape(-1, OPTIONS).argmax(1) == target).sum()


class Matches:
    """Each caption comes with its picture and with a wrong pair: as often another picture's caption as another picture.
    A pair is judged by itself (OSCAR, Li et al., ECCV 2020)."""

    def pairs(self, data: TaskData, rows: Sequence[int], rng: np.random.Generator) -> Pairs:
        own = data.images[:, 0]
        others = len(data.keys) - 1
        if not others:
            raise DataError(f"retrieval needs wrong pairs, and the store has no picture beside {data.keys[0]!r}")
        texts, images = [], []
        for row in rows:
            image = int(own[row])
            texts.append(row)
            images.append(image)
            if rng.random() < 0.5 and (own != image).any():
                texts.append(_caption_of_another(own, image, rng))
                images.append(image)
            else:
                other = int(rng.integers(others))
                texts.append(row)
                images.append(other + (other >= image))
        return Pairs(texts, images, torch.zeros(len(rows), dtype=torch.long))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        right = torch.zeros_like(logits.reshape(-1, 2))
        right[:, 0] = 1
        return losses.mean_binary(logits.reshape(-1, 2), right)

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        pairs = logits.reshape(-1, 2)
        return (pairs[:, 0] > pairs[:, 1]).sum()


def _caption_of_another(own: np.ndarray, image: int, rng: np.random.Generator) -> int:
    while own[row := int(rng.integers(len(own)))] == image:
        pass
    return row


def _caption_of(own: np.ndarray, alike: int | None, image: int, rng: np.random.Generator) -> int:
    rows = np.flatnonzero(own == alike) if alike is not None else ()
    return int(rng.choice(rows)) if len(rows) else _caption_of_another(own, image, rng)
