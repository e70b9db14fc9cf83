"""Presets whose regions are the cells of a grid: image transformers by name or from a folder, and C5 of the detectors.

Light on purpose (no torch).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cache import InputNotFound, UsageError
from cache.tensor_files import INDEX

from .configs import C5GridConfig, CentreCrop, GridCells
from .preset import Preset
from .transformer_configs import (
    ARCHITECTURES,
    CONFIG,
    PROCESSORS,
    WRITERS,
    TransformerConfig,
    find_settings,
    read_architecture,
    read_json,
    read_processor,
    read_settings,
)
from .weights import FOLDER_FILES, checkpoint_in

_TRAINING_DATA = {
    "openai": "400 million pairs of image and text (OpenAI)",
    "laion": "LAION-2B",
    "google/vit": "ImageNet-21k",
    "google/siglip": "WebLI",
}


def _published(name: str, kind: str, repository: str, summary: str, **changes: Any) -> Preset:
    """A model of the Hugging Face hub. Light: its configuration is told here, not read."""
    architecture = replace(ARCHITECTURES[kind], **changes)
    return _preset(
        name,
        f"{summary}: {architecture.cells} patches and the image's embedding ({repository})",
        architecture,
        replace(PROCESSORS[kind], side=architecture.image),
        *_of_the_hub(repository),
        training_data=next((data for start, data in _TRAINING_DATA.items() if repository.startswith(start)), "unknown"),
    )


def _preset(
    name: str,
    summary: str,
    architecture: TransformerConfig,
    preprocess: CentreCrop,
    weights: str,
    urls: tuple[str, ...],
    training_data: str = "unknown",
) -> Preset:
    return Preset(
        name=name,
        revision=1,
        summary=summary,
        architecture=architecture,
        preprocess=preprocess,
        selection=GridCells(architecture.cells, architecture.cells),
        weights=weights,
        class_file="",
        attribute_file="",
        training_data=training_data,
        urls=urls,
    )


def _of_the_hub(repository: str, files: Sequence[str] = FOLDER_FILES) -> tuple[str, tuple[str, ...]]:
    """The name that a checkpoint is kept under, and its addresses."""
    urls = tuple(f"https://huggingface.co/{repository}/resolve/main/{file}" for file in files)
    return f"{repository.replace('/', '--')}.safetensors", urls


_LARGE = {"hidden": 1024, "layers": 24, "heads": 16, "mlp": 4096}
_HUGE = {"hidden": 1280, "layers": 32, "heads": 16, "mlp": 5120}

TRANSFORMERS = (
    _published("clip-vit-b32", "clip", "openai/clip-vit-base-patch32", "CLIP ViT-B/32"),
    _published("clip-vit-b16", "clip", "openai/clip-vit-base-patch16", "CLIP ViT-B/16", patch=16),
    _published(
        "clip-vit-l14", "clip", "openai/clip-vit-large-patch14", "CLIP ViT-L/14", **_LARGE, patch=14, embedding=768
    ),
    _published(
        "clip-vit-h14", "clip", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "the CLIP that VSR tests, ViT-H/14",
        **_HUGE, patch=14, embedding=1024, activation="gelu",
    ),
    _published("vit-b16", "vit", "google/vit-base-patch16-224", "ViT-B/16, fine-tuned on ImageNet-1k"),
    _published("vit-b16-in21k", "vit", "google/vit-base-patch16-224-in21k", "ViT-B/16"),
    _published(
        "vit-l16", "vit", "google/vit-large-patch16-224", "ViT-L/16, fine-tuned on ImageNet-1k",
        **_LARGE, embedding=1024,
    ),
    _published(
        "vit-l16-in21k", "vit", "google/vit-large-patch16-224-in21k",
        "ViT-L/16, the size of MaXM's Simple MPT", **_LARGE, embedding=1024,
    ),
    _published("siglip-b16", "siglip", "google/siglip-base-patch16-224", "SigLIP ViT-B/16"),
    _published(
        "siglip-b16-multilingual", "siglip", "google/siglip-base-patch16-256-multilingual",
        "SigLIP ViT-B/16 beside texts of a hundred languages", image=256,
    ),
)  # fmt: skip


def c5_grid(detector: Preset, name: str, summary: str, pool: int) -> Preset:
    """The last map of a detector's backbone: its weights, images at 600/1000, cells of 32 x 32 pixels, 608 at most."""
    return replace(
        detector,
        name=name,
        revision=1,
        summary=summary,
        architecture=C5GridConfig(detector.architecture, pool),
        preprocess=replace(detector.preprocess, short_side=600, long_side=1000),
        selection=GridCells(1, 608),
        class_file="",
        attribute_file="",
        faithful=(),
    )


def transformer_preset(name: str) -> Preset:
    """The preset for "clip:PLACE", or another of `KINDS`.

    PLACE is a folder that transformers' `save_pretrained` wrote, or the name OWNER/NAME of a repository of the Hugging
    Face hub, whose configuration huggingface_hub reads and keeps; `weights fetch` downloads its checkpoint.

    Raises:
        UsageError: another kind of model, or one whose images are prepared in a way that is not known here.
        InputNotFound: there is neither such a folder nor such a repository.
    """
    kind, _, place = name.partition(":")
    folder = Path(place).expanduser()
    if folder.is_dir():
        place = str(folder.resolve())  # the name has to mean the same in every process
        name, (config, settings) = f"{kind}:{place}", read_settings(folder)
        weights, urls = str(checkpoint_in(folder.resolve())), ()
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        config, settings = find_settings(lambda file: _hub_json(place, file))
        weights, urls = _of_the_hub(place, (INDEX, FOLDER_FILES[0]) if kind in WRITERS else FOLDER_FILES)
    else:
        raise InputNotFound(f"--model {name}: there is no folder {folder}, and OWNER/NAME of the hub it is not")
    if config is None:
        raise InputNotFound(f"--model {name}: there is no {CONFIG}; give a folder that save_pretrained wrote")
    architecture = read_architecture(kind, config, name)
    preprocess = read_processor(kind, settings or {}, architecture.image, name)
    return _preset(name, f"{kind} model {place}", architecture, preprocess, weights, urls)


def _hub_json(repository: str, file: str) -> dict[str, Any] | None:
    """A small file of a repository, None where it has none; one that was read before also without a network."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError as error:
        raise UsageError(
            f"a model of the hub needs huggingface_hub, which cannot be imported ({error}): "
            "pip install 'roivault[consumers]'"
        ) from error
    try:
        return read_json(Path(hf_hub_download(repository, file)))
    except LocalEntryNotFoundError as error:
        raise _unreachable(repository, error) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:  # no such repository, no access to it, no network
        raise _unreachable(repository, error) from error


def _unreachable(repository: str, error: Exception) -> InputNotFound:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return InputNotFound(
        f"the repository {repository} of the hub cannot be read ({reason}); give a folder that has a copy of it"
    )
