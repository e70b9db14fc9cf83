"""Images in, region features out. Heavy parts (torch, torchvision, opencv) load when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .preset import Preset
from .presets import get_preset, list_extractors

if TYPE_CHECKING:
    from .extractor import Extractor, load_extractor
    from .images import DecodedImage, DecodePolicy, ImageError, decode

__all__ = [
    "DecodePolicy",
    "DecodedImage",
    "Extractor",
    "ImageError",
    "Preset",
    "decode",
    "get_preset",
    "list_extractors",
    "load_extractor",
]

_LAZY = {
    "Extractor": "extractor",
    "load_extractor": "extractor",
    "DecodePolicy": "images",
    "DecodedImage": "images",
    "ImageError": "images",
    "decode": "images",
}


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
