"""Models beside the encoders: published ones of transformers, which read what a store holds or the pictures themselves.

    model = load_model("lxmert-vsr")                          # published weights, by their hub id
    model = load_model("vilt", "runs/vilt-vsr-en/best")       # a folder as `save_pretrained` leaves it

`finetune --encoder NAME` and `evaluate --encoder NAME` take these names as they take those of encoders. A new model is
one module with a class as `Model` says, and one line in MODELS.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cache import UsageError

if TYPE_CHECKING:
    from ..tasks import Task
    from .base import Model

MODELS: dict[str, str] = {
    "visualbert-vsr": "visualbert:VisualBertVsr",
    "lxmert-vsr": "lxmert:LxmertVsr",
    "vilt": "vilt:Vilt",
    "clip-negation": "clip_negation:ClipNegation",
    "clip-retrieval": "comparing:ClipRetrieval",
    "siglip-retrieval": "comparing:SiglipRetrieval",
    "embeddings": "comparing:GivenEmbeddings",
    "mt5-captions": "captioning:PatchCaptions",
    "simple-mpt": "simple_mpt:SimpleMpt",
    "simple-mpt-pixels": "simple_mpt:SimpleMptPixels",
    "blip2": "answering:Blip2",
    "paligemma": "answering:PaliGemma",
}
NOT_RUN = {
    "ofa": "transformers has no OFA: its authors keep a fork of their own, and what they published fits that only; "
    "score what it says with `evaluate --predictions FILE`",
    "pali": "its weights were never published; `report` has its published scores, and paligemma is its open relative",
}


def list_models() -> list[str]:
    """Names that `load_model` knows."""
    return list(MODELS)


def model_class(name: str) -> type[Model]:
    """The class of a model: what it reads, which tasks it answers, and how it was trained. Raises: UsageError."""
    if name in NOT_RUN:
        raise UsageError(f"{name} cannot be run here: {NOT_RUN[name]}")
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}; choose from {', '.join(MODELS)}")
    module, _, cls = MODELS[name].partition(":")
    return getattr(import_module(f".{module}", __name__), cls)


def load_model(
    name: str,
    source: str | Path | None = None,
    task: Task | None = None,
    tokenizer: str | Path | None = None,
    legacy: bool = False,
) -> Model:
    """A model in evaluation mode.

    Args:
        name: one of `list_models()`.
        source: hub id, or folder of the same layout; None for the published weights.
        task: that it is to answer; None for the first of those it was published for.
        tokenizer: hub id or folder; None for that of the source, else the published one.
        legacy: reproduce the quirks of the published code.

    Raises:
        UsageError: there is no such model, or it does not answer the task.
        InputNotFound: nothing is at `source`, or the hub cannot be reached.
        WeightsError: what is there is not this model.
    """
    cls = model_class(name)
    if task is not None and task.name not in cls.tasks:
        raise UsageError(f"{name} does not answer {task.name}, but {', '.join(cls.tasks)}")
    return cls.load(str(source or cls.source), task, tokenizer and str(tokenizer), legacy).eval()
