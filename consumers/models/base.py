"""What a model beside the encoders is: pictures and texts as a batch of tensors, and that batch as logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from cache import InputNotFound, WeightsError

from ..encoders.checkpoint import LoadReport
from ..recipes import Recipe

if TYPE_CHECKING:
    from ..objectives import Objective
    from ..tasks import Example, Task


class Batch(tuple[Tensor, ...]):
    """What a model's `forward` takes, in its order; the first axis of each tensor is that of the items."""

    @classmethod
    def of(cls, *tensors: Tensor) -> Batch:
        return cls(tensors)

    def to(self, device: torch.device | str) -> Batch:
        return Batch(tensor.to(device, non_blocking=True) for tensor in self)

    def pinned(self) -> Batch:
        """In memory that a GPU copies from by itself."""
        return Batch(tensor.pin_memory() for tensor in self)


class Model(nn.Module, ABC):
    """A model of transformers that answers a task.

    `model(*model.batch(examples, pictures))` gives logits: [B, labels], or of a model that writes texts [B, T, words],
    where the batch holds the tokens of the answer as well, which training forces on it.

    Attributes:
        name: as in MODELS.
        source: hub id of the published weights.
        tasks: names of the tasks that it answers.
        reads: "store": records of a store (`cache.Regions`: regions, patches, or `global_features`), "images": the
            pictures of a folder, u8 [H, W, 3], RGB, or "either", as it is given.
        recipe: how it was fine-tuned; None of a model that is used as it is.
        writes: its answers are texts of any kind, rather than labels.
        legacy: reproduce the quirks of the published code.
        report: what was loaded; `fresh` are tensors that the source lacks, which makes it untrained for the task.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    reads: ClassVar[str] = "store"
    recipe: ClassVar[Recipe | None] = None
    writes: ClassVar[bool] = False
    legacy: bool = False
    report: LoadReport

    @classmethod
    @abstractmethod
    def load(cls, source: str, task: Task | None, tokenizer: str | None, legacy: bool) -> Model:
        """See `load_model`."""

    def look_at(self, picture: Any) -> None:
        """Called once with one of the pictures before all else, so that what does not fit is told at once.

        Raises: StoreMismatch: it is not what this model reads.
        """

    def check_store(self, made_with: Mapping[str, Any]) -> list[str]:
        """Called with the fingerprint of each store before all else; returns what is unusual.

        Raises: StoreMismatch: what is in it is not made for this model.
        """
        return []

    @abstractmethod
    def batch(self, examples: Sequence[Example], pictures: Sequence[Any], max_tokens: int) -> Batch:
        """The i-th example with the i-th picture, for `forward`; texts are cut at `max_tokens`.

        Raises: StoreMismatch: a record is not what this model reads, which the error tells with the remedy.
        """

    @abstractmethod
    def objective(self, task: Task) -> Objective:
        """What training makes of its logits."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Leave in a folder what `load` reads; whatever is there is replaced. Raises: OSError."""

    def answers(self, batch: Batch, task: Task) -> list[str]:
        """What it says of each item: here the likeliest label, the lower one of equals."""
        return [task.labels[best] for best in self(*batch).argmax(1).tolist()]

    def head(self, name: str) -> Callable[[Tensor], Tensor]:
        """What makes logits of its output, as an encoder's head does: its output are logits."""
        return nn.Identity()


def pretrained(cls: Any, source: str, **options: Any) -> tuple[Any, LoadReport]:
    """A model class of transformers from a hub id or a folder, in float32, and what became of the tensors.

    Raises: InputNotFound, WeightsError.
    """
    try:
        with quiet():
            model, info = cls.from_pretrained(source, output_loading_info=True, dtype=torch.float32, **options)
    except Exception as error:  # files that make no sense raise whatever their readers do
        raise _unloadable(source, cls, error) from error
    fresh = tuple(sorted({*info["missing_keys"], *(name for name, *_ in info.get("mismatched_keys", ()))}))
    loaded = tuple(name for name in model.state_dict() if name not in fresh)
    return model, LoadReport(source, loaded, (), tuple(sorted(info["unexpected_keys"])), fresh)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and warnings of transformers: what was loaded is told by a report."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def companion(cls: Any, source: str, **options: Any) -> Any:
    """A tokenizer or image processor of transformers. Raises: InputNotFound."""
    try:
        return cls.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unloadable(source, cls, error) from error


def _unloadable(source: str, cls: Any, error: Exception) -> InputNotFound | WeightsError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, OSError):
        return InputNotFound(
            f"no {cls.__name__} at {source!r} ({reason}); give a hub id that can be reached, or a folder as "
            "`save_pretrained` leaves it"
        )
    return WeightsError(f"{source!r} is no {cls.__name__}: {reason}")
