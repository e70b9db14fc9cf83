"""Image transformers as the files of the transformers package describe them: config.json and preprocessor_config.json.

Light on purpose (no torch).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from cache import UsageError, WeightsError
from cache.tensor_files import IMAGE_SIDE

from .configs import CentreCrop

WRITERS = ("blip2", "paligemma")  # models that write texts, of which the image side is taken
KINDS = ("clip", "vit", "siglip", *WRITERS)
CONFIG, PROCESSOR, BOTH_PROCESSORS = "config.json", "preprocessor_config.json", "processor_config.json"
FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_MODEL_TYPES = {
    "clip": ("clip", "clip_vision_model"),
    "vit": ("vit",),
    "siglip": ("siglip", "siglip_vision_model"),
    "blip2": ("blip-2",),
    "paligemma": ("paligemma",),
}


@dataclass(frozen=True)
class TransformerConfig:
    """An image transformer of the transformers package, whose patches are the cells of a grid.

    Attributes:
        kind: "clip" (Radford et al. 2021), "vit" (Dosovitskiy et al. 2021), "siglip" (Zhai et al. 2023), or the image
            side of "blip2" (Li et al. 2023) or of "paligemma" (Beyer et al. 2024).
        hidden: length of a patch's vector; heads of attention share it, mlp is the width of the layers between.
        patch, image: sides in pixels of a patch and of the whole input.
        embedding: length of the vector of the whole image; for CLIP that of its projection, for PaliGemma 0.
    """

    network: ClassVar[str] = "extractor.grid:TransformerGrid"
    package: ClassVar[str] = "transformers"

    kind: str
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    mlp: int = 3072
    patch: int = 16
    image: int = 224
    embedding: int = 768
    activation: str = "gelu"
    norm_epsilon: float = 1e-5
    num_classes: int = 0
    num_attributes: int = 0
    roi_chunk: int = 50

    @property
    def dim(self) -> int:
        return self.hidden

    @property
    def part(self) -> str:
        """See `Preset.part`: models that write texts are many times as large as their image sides."""
        return IMAGE_SIDE if self.kind in WRITERS else ""

    @property
    def cells(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    def check_folder(self, folder: Path, preprocess: CentreCrop) -> None:
        """Refuse a folder whose configuration is of another model.

        Raises:
            UsageError: the configuration cannot be understood.
            WeightsError: it is of another model; names what differs.
        """
        config, settings = read_settings(folder)
        if config is None:
            return
        found = read_architecture(self.kind, config, str(folder))
        prepared = preprocess if settings is None else read_processor(self.kind, settings, found.image, str(folder))
        mine, theirs = asdict(self) | asdict(preprocess), asdict(found) | asdict(prepared)
        if differ := [f"{name} is {theirs[name]}, not {mine[name]}" for name in mine if mine[name] != theirs[name]]:
            raise WeightsError(f"{folder} holds another model: {'; '.join(differ)}")


# What transformers takes where a configuration or an image processor says nothing
_CLIP_STATISTICS = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
ARCHITECTURES = {
    "clip": TransformerConfig("clip", patch=32, embedding=512, activation="quick_gelu", norm_epsilon=1e-5),
    "vit": TransformerConfig("vit", activation="gelu", norm_epsilon=1e-12),
    "siglip": TransformerConfig("siglip", activation="gelu_pytorch_tanh", norm_epsilon=1e-6),
    "blip2": TransformerConfig(
        "blip2", hidden=1408, layers=39, heads=16, mlp=6144, patch=14, embedding=1408, norm_epsilon=1e-6
    ),
    "paligemma": TransformerConfig("paligemma", embedding=0, activation="gelu_pytorch_tanh", norm_epsilon=1e-6),
}
PROCESSORS = {
    "clip": CentreCrop(short_side=224, **_CLIP_STATISTICS),
    "vit": CentreCrop(filter="bilinear"),
    "siglip": CentreCrop(),
    "blip2": CentreCrop(**_CLIP_STATISTICS),
    "paligemma": CentreCrop(),
}


def read_architecture(kind: str, config: dict[str, Any], where: str) -> TransformerConfig:
    """The image encoder that a config.json describes; what it leaves out is as in transformers. Raises: UsageError."""
    if config.get("model_type") not in _MODEL_TYPES[kind]:
        raise UsageError(f"{where}: it is a model of type {config.get('model_type')!r}, not of {kind}")
    vision = config.get("vision_config") or config.get("vision_config_dict") or config
    if not isinstance(vision, dict):
        raise UsageError(f"{where}: vision_config is {str(vision)[:100]!r}, not settings")
    base = ARCHITECTURES[kind]
    for option, needed in (("num_channels", 3), ("qkv_bias", True), ("vision_use_head", True)):
        if kind == "paligemma" and option == "vision_use_head":
            continue  # it reads patches and no embedding, so that most have no head
        if vision.get(option, needed) != needed:
            raise UsageError(f"{where}: {option} is {vision[option]!r}, for now it must be {needed!r}")

    def count(settings: dict[str, Any], option: str, default: int) -> int:
        value = settings.get(option, default)
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{where}: {option} is {value!r}, it must be a positive whole number")
        return value

    activation, epsilon = vision.get("hidden_act", base.activation), vision.get("layer_norm_eps", base.norm_epsilon)
    if not isinstance(activation, str) or not isinstance(epsilon, float):
        raise UsageError(f"{where}: hidden_act {activation!r} is no name, or layer_norm_eps {epsilon!r} no number")
    hidden = count(vision, "hidden_size", base.hidden)
    return TransformerConfig(
        kind=kind,
        hidden=hidden,
        layers=count(vision, "num_hidden_layers", base.layers),
        heads=count(vision, "num_attention_heads", base.heads),
        mlp=count(vision, "intermediate_size", base.mlp),
        patch=count(vision, "patch_size", base.patch),
        image=count(vision, "image_size", base.image),
        embedding=count(config, "projection_dim", base.embedding) if kind == "clip" else base.embedding and hidden,
        activation=activation,
        norm_epsilon=epsilon,
    )


def read_processor(kind: str, settings: dict[str, Any], image: int, where: str) -> CentreCrop:
    """What a preprocessor_config.json describes; what it leaves out is as in transformers. Raises: UsageError."""
    try:
        return _read_processor(kind, settings, image, where)
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(f"{where}: {PROCESSOR} has settings that make no sense: {error!r}") from error


def _read_processor(kind: str, settings: dict[str, Any], image: int, where: str) -> CentreCrop:
    base, size = PROCESSORS[kind], settings.get("size", image)
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if not settings.get(step, True):
            raise UsageError(f"{where}: {PROCESSOR} has {step} false, which is not known here")
    crops = settings.get("do_center_crop", kind == "clip")
    if isinstance(size, dict):
        short, sides = size.get("shortest_edge", 0), {size.get("height", image), size.get("width", image)}
    else:
        short, sides = (size, {image}) if crops else (0, {size})
    if short and crops:
        cut = settings.get("crop_size", image)
        sides = {cut["height"], cut["width"]} if isinstance(cut, dict) else {cut}
    factor = settings.get("rescale_factor", 1 / 255)
    if sides != {image} or (short and (short < image or not crops)) or abs(factor * 255 - 1) > 1e-6:
        raise UsageError(
            f"{where}: {PROCESSOR} does not make squares of {image} pixels, the model's, from brightness 0..255; that "
            "is not known here"
        )
    if settings.get("resample", 3) not in FILTERS:
        raise UsageError(f"{where}: {PROCESSOR} names filter {settings['resample']!r}, not one of {FILTERS}")
    mean, std = (tuple(settings.get(f"image_{name}", getattr(base, name))) for name in ("mean", "std"))
    if len(mean) != 3 or len(std) != 3 or not all(map(math.isfinite, mean)) or not min(std) > 0:
        raise ValueError(f"image_mean {mean}, image_std {std}")
    return CentreCrop(
        short_side=short,
        side=image,
        filter=FILTERS[settings["resample"]] if "resample" in settings else base.filter,
        mean=mean,
        std=std,
    )


def read_settings(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """A model's configuration and its image processor's settings, None for what a folder lacks. Raises: UsageError."""
    return find_settings(lambda name: read_json(folder / name))


def find_settings(read: Callable[[str], dict[str, Any] | None]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The same from what `read` gives for the name of a file: since transformers 5 both processors may share one."""
    settings = read(PROCESSOR) or (read(BOTH_PROCESSORS) or {}).get("image_processor")
    return read(CONFIG), settings


def read_json(file: Path) -> dict[str, Any] | None:
    """The settings in a file; None without it. Raises: UsageError."""
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds a {type(content).__name__}, not settings")
    return content
