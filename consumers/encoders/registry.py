"""The encoders by name, and how one is built."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from cache import UsageError

from . import configs
from .checkpoint import assign, fill, normalised, read_checkpoint
from .config import EncoderConfig
from .encoder import Encoder
from .image_embeddings import IMAGE_EMBEDDINGS
from .m3p import M3P
from .oscar import Oscar
from .text_models import fill_from_text_model, is_text_model
from .vl_bert import VlBert
from .volta import read_config

CLASSES = {"m3p": M3P, "oscar": Oscar, "vl-bert": VlBert}  # by image embedding; the others are plain encoders


@cache
def _configs() -> dict[str, EncoderConfig]:
    modules = (importlib.import_module(f"{configs.__name__}.{m.name}") for m in pkgutil.iter_modules(configs.__path__))
    return {module.CONFIG.name: module.CONFIG for module in modules}


def list_encoders() -> list[str]:
    """Names that `load_encoder` knows."""
    return sorted(_configs())


def encoder_config(name: str | EncoderConfig) -> EncoderConfig:
    """The configuration of a name (a configuration is itself). Raises UsageError for an unknown one."""
    if isinstance(name, EncoderConfig):
        return name
    if name not in _configs():
        raise UsageError(f"unknown encoder {name!r}; choose from {', '.join(list_encoders())}")
    return _configs()[name]


def load_encoder(
    name: str | EncoderConfig,
    checkpoint: str | Path | None = None,
    heads: Iterable[str] | Mapping[str, int] = (),
    legacy: bool = False,
) -> Encoder:
    """An encoder in evaluation mode.

    `checkpoint` is a file or directory with tensors in Volta's names (pretrained or fine-tuned), or a text model of
    transformers to start from; without it all weights are drawn anew. `heads` are names, or names with numbers of
    labels; a head that the checkpoint lacks is drawn anew. `encoder.report` tells what was loaded and what was not.
    Raises UsageError, InputNotFound, WeightsError.
    """
    config = encoder_config(name)
    state = normalised(read_checkpoint(checkpoint)) if checkpoint is not None else {}
    encoder = _on_meta(_class(config).suited(config, state), heads, legacy)
    if checkpoint is None:
        assign(encoder, {})
    else:
        load = fill_from_text_model if is_text_model(state) else fill
        encoder.report = load(encoder, state, str(checkpoint))
    return encoder.eval()


def from_volta(
    config: Mapping | str | Path,
    state_dict: Mapping[str, Tensor],
    heads: Iterable[str] | Mapping[str, int] = (),
    legacy: bool = False,
) -> Encoder:
    """An encoder in evaluation mode from a Volta JSON configuration (contents or path) and a state dict with Volta's
    names; sizes are the state dict's. Raises UsageError, InputNotFound, WeightsError."""
    state = normalised(state_dict)
    families = {name: CLASSES.get(name, Encoder).read_volta for name in (*IMAGE_EMBEDDINGS, *CLASSES)}
    read, labels = read_config(config, state, heads, families)
    encoder = _on_meta(_class(read).suited(read, state), labels, legacy)
    encoder.report = fill(encoder, state, "the state dict")
    return encoder.eval()


def _on_meta(config: EncoderConfig, heads: Iterable[str] | Mapping[str, int], legacy: bool) -> Encoder:
    with torch.device("meta"):
        return _class(config)(config, heads, legacy)


def _class(config: EncoderConfig) -> type[Encoder]:
    return CLASSES.get(config.image_embedding, Encoder)
