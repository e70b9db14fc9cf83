"""What a run of any kind has: an encoder or model, a task, a language, stores and annotations, and a device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cache import InputNotFound, UsageError, open_store

from .data import TaskData
from .encoders import Encoder, encoder_config, list_encoders, load_encoder, load_tokenizer
from .encoders.tags import rule_of
from .models import MODELS, NOT_RUN, list_models, load_model, model_class
from .models.base import Model
from .models.data import ModelData, StoredPictures
from .models.images import FolderOfImages
from .recipes import fitted
from .tasks import Selection, Task, load_task
from .tasks.files import find_file

PRECISIONS = ("auto", "float32", "bfloat16")
OTHER_PICTURES = 1000  # wrong options of a training set with one picture
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
TASK_OPTIONS = {"eval_set": ("xgqa", "xvnli"), "train_on": ("maxm", "xgqa"), "translate": ("maxm",)}  # whose they are
TASK_OPTIONS |= {"candidates": ("xm3600",)}


@dataclass(frozen=True)
class Setting:
    """What all runs have.

    Attributes:
        encoder: a name of `list_encoders()` or `list_models()`.
        checkpoint: weights to start from or to evaluate; None draws them anew, or takes a model's published ones. Of a
            model a hub id or a folder.
        task: a name of `list_tasks()`.
        stores: what `open_store` takes.
        annotations: folder of the task's annotations.
        language: of the texts.
        tokenizer: hub id or folder; None for the encoder's own.
        legacy: reproduce the published quirks of the encoder.
        device: auto, cpu, cuda or cuda:N.
        precision: auto, float32 or bfloat16 (autocast); auto is bfloat16 on a GPU.
        images: folder of the pictures, for models that read them instead of a store.
        train_on: of tasks that are trained on another dataset, see `consumers.tasks.vqa.training_task`.
    """

    encoder: str
    checkpoint: str | None
    task: str
    stores: tuple[str, ...]
    annotations: str
    language: str = "en"
    tokenizer: str | None = None
    legacy: bool = False
    device: str = "auto"
    precision: str = "auto"
    images: str | None = None
    train_on: str | None = None

    @property
    def on(self) -> torch.device:
        """Raises: UsageError: there is no such device."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise UsageError(f"device {self.device!r} is not one of auto, cpu, cuda or cuda:N") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UsageError(f"device {self.device!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs")
        return device

    @property
    def bfloat16(self) -> bool:
        """Raises: UsageError."""
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        return self.precision == "bfloat16" or self.precision == "auto" and self.on.type == "cuda"

    def load_task(self, **options: str | None) -> Task:
        """The task, with those options that are given. Raises: UsageError: it has no such option."""
        chosen = {name: value for name, value in {**options, "train_on": self.train_on}.items() if value is not None}
        for name, value in chosen.items():
            if self.task not in (known := TASK_OPTIONS[name]):
                raise UsageError(
                    f"--{name.replace('_', '-')} {value} is for {' and '.join(known)}, not for {self.task}"
                )
        return load_task(self.task, self.annotations, **chosen)

    def check(self, task: Task, selections: Sequence[Selection], option: str) -> None:
        """What can be told before anything is loaded; `option` is how the user names the checkpoint.

        Raises: UsageError, InputNotFound.
        """
        _ = self.on, self.bfloat16
        self._check_model(task)
        for selection in selections:
            if find_file(path := task.path(selection)) is None:
                raise InputNotFound(f"{task.name}: {path} is not there (nor with .gz or .zip behind it)")
        if self.checkpoint and not Path(self.checkpoint).exists():
            if self.encoder not in MODELS or not HUB_ID.fullmatch(self.checkpoint):
                raise InputNotFound(f"{option} {self.checkpoint} does not exist")

    def _check_model(self, task: Task) -> None:
        """Whether there is such an encoder or model, and what it reads is given. Raises: UsageError, InputNotFound."""
        reads = "store"
        if self.encoder in (*MODELS, *NOT_RUN):
            known = model_class(self.encoder)
            reads = known.reads
            if task.name not in known.tasks:
                raise UsageError(f"{self.encoder} does not answer {task.name}, but {', '.join(known.tasks)}")
        elif not task.head:
            able = [name for name in list_models() if task.name in model_class(name).tasks]
            raise UsageError(f"{task.name} is answered by models that write, such as {', '.join(able)}")
        elif self.encoder not in list_encoders():
            raise UsageError(
                f"unknown encoder {self.encoder!r}; choose from {', '.join(list_encoders())}, or from the models "
                f"{', '.join(list_models())}"
            )
        if reads == "either":
            if bool(self.stores) == bool(self.images):
                raise UsageError(f"{self.encoder} reads a store (--store) or pictures (--images DIR), one of the two")
            reads = "store" if self.stores else "images"
        given = self.stores if reads == "store" else self.images
        other = self.images if reads == "store" else self.stores
        if not given or other:
            wanted = "a store (--store)" if reads == "store" else "pictures (--images DIR)"
            unwanted = "pictures" if reads == "store" else "a store"
            raise UsageError(f"{self.encoder} reads {wanted}, and not {unwanted}")
        if self.images and not Path(self.images).is_dir():
            raise InputNotFound(f"--images {self.images} is not a folder")

    def build(self, task: Task) -> Encoder | Model:
        """Raises: UsageError, InputNotFound, WeightsError."""
        if self.encoder in MODELS:
            return load_model(self.encoder, self.checkpoint, task, self.tokenizer, self.legacy)
        labels = len(task.labels) if task.metric == "accuracy" else 1
        config = fitted(encoder_config(self.encoder), task.name)
        return load_encoder(config, self.checkpoint, heads={task.head: labels}, legacy=self.legacy)

    def data(
        self,
        encoder: Encoder | Model,
        task: Task,
        selections: Sequence[Selection],
        max_tokens: int,
        shuffled: bool = False,
        most: int | None = None,
    ) -> TaskData | ModelData:
        """The examples of selections, or the first ones of them, with what the stores have of them.

        Raises: InputNotFound, DataError, MissingKeys, StoreMismatch, StoreNotFound, StoreDamaged.
        """
        examples = [example for selection in selections for example in task.load(selection)][:most]
        if isinstance(encoder, Model):
            pictures = FolderOfImages(self.images) if self.images else StoredPictures(open_store(self.stores))
            return ModelData(examples, pictures, encoder, max_tokens, shuffled)
        tokenizer = load_tokenizer(encoder.config, self.tokenizer)
        one_picture = selections[0].split == "train" and len({keys for e in examples for keys in e.images}) == 1
        others = OTHER_PICTURES if one_picture and task.metric == "recall" else 0
        store, tags = open_store(self.stores), rule_of(encoder.config, task.head)
        return TaskData(examples, store, encoder.config, tokenizer, max_tokens, others, shuffled, tags)
