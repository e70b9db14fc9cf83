"""What each extractor is: architecture, preprocessing, selection and vocabulary, attached to its weights.

Light on purpose (no torch): listing the models must be instant. A new detector is one entry here plus, when it needs
one, its own module.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from cache import UsageError

if TYPE_CHECKING:
    from .images import DecodePolicy


@dataclass(frozen=True)
class C4Config:
    """Faster R-CNN on one stride-16 map (res4) with a dilated res5 as the region head and an attribute head.

    Defaults are the ResNet-101 of the Visual Genome bottom-up-attention detector; module names, hence tensor names,
    are detectron2's. Sizes in pixels of the resized image.
    """

    stem_channels: int = 64
    widths: tuple[int, int, int, int] = (64, 128, 256, 512)  # of the 3x3 convolutions in res2..res5
    channels: tuple[int, int, int, int] = (256, 512, 1024, 2048)  # put out by res2..res5
    blocks: tuple[int, int, int, int] = (3, 4, 23, 3)
    rpn_channels: int = 512
    anchor_sizes: tuple[int, ...] = (64, 128, 256, 512)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    pre_nms: int = 6000
    proposal_nms: float = 0.7
    proposals: int = 300
    pooled_size: int = 14
    num_classes: int = 1600
    num_attributes: int = 400
    class_embedding: int = 256
    attribute_hidden: int = 512
    roi_chunk: int = 50  # RoIs per pass of the region head; fixed, so that results do not depend on their number

    @property
    def dim(self) -> int:
        return self.channels[3]


@dataclass(frozen=True)
class Preprocess:
    """Pillow resize of the uint8 image to a short side with a capped long side, then mean subtraction in BGR order."""

    short_side: int = 800
    long_side: int = 1333
    mean_bgr: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)


@dataclass(frozen=True)
class MaxClassNMS:
    """Non-maximum suppression over every region's most probable class box, whatever the class.

    The IoU threshold is raised step by step until `max_regions` remain; what is left after the last step is kept, be
    it less. Regions under `min_score` are then dropped, but never below `min_regions`.
    """

    max_regions: int = 36
    thresholds: tuple[float, ...] = (0.5, 0.6, 0.7, 0.7999999999999999, 0.8999999999999999)
    min_score: float = 0.0
    min_regions: int = 0


@dataclass(frozen=True)
class Preset:
    """A detector with everything that decides its output.

    `revision` rises whenever the same weights would give other records; stores refuse to mix revisions.
    `weights` is a file in extractor/data; `class_file` and `attribute_file` are vocabularies there, one name a line
    (synonyms after a comma).
    """

    name: str
    revision: int
    summary: str
    architecture: C4Config
    preprocess: Preprocess
    selection: MaxClassNMS
    weights: str
    class_file: str
    attribute_file: str
    training_data: str

    @property
    def dim(self) -> int:
        """Length of a feature vector."""
        return self.architecture.dim

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a record's class_ids index them. The background class is not among them."""
        return read_vocabulary(self.class_file)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attribute names; a record's attr_ids index them."""
        return read_vocabulary(self.attribute_file)

    @property
    def weights_file(self) -> Path:
        """Where its checkpoint lies once it is installed."""
        return Path(str(files("extractor").joinpath("data", self.weights)))

    def choices(self) -> dict[str, str | int | float]:
        """The preset's settings, flat, for a store's fingerprint."""
        flat: dict[str, str | int | float] = {"preset": self.name, "preset_revision": self.revision}
        for part in ("preprocess", "selection"):
            for name, value in asdict(getattr(self, part)).items():
                flat[f"{part}.{name}"] = list_text(value) if isinstance(value, tuple) else value
        return flat


def list_text(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def fingerprint(preset: Preset, weights_sha256: str, precision: str, policy: DecodePolicy) -> dict[str, str | int | float]:
    """Everything that may change a byte of a record, flat: it can be told without loading the model.

    Args:
        weights_sha256: hexadecimal sha256 of the checkpoint file.
        precision: float32, bfloat16 or float16; what `auto` became.
        policy: how image files are read.
    """
    return {
        "weights_sha256": weights_sha256,
        **preset.choices(),
        "precision": precision,
        "orientation": policy.orientation,
        "truncated": policy.truncated,
        "max_pixels": policy.max_pixels,
    }


@cache
def read_vocabulary(name: str) -> tuple[str, ...]:
    """Names of a vocabulary file of the package, in id order: of each line the text before the first comma."""
    text = files("extractor").joinpath("data", name).read_text(encoding="utf-8")
    return tuple(line.split(",")[0].strip().lower() for line in text.splitlines())


DEMO = Preset(
    name="demo",
    revision=1,
    summary="small C4 detector of drawn shapes with colour and texture attributes; ships with the package",
    architecture=C4Config(
        stem_channels=32,
        widths=(16, 32, 64, 96),
        channels=(64, 128, 256, 384),
        blocks=(2, 2, 2, 2),
        rpn_channels=128,
        anchor_sizes=(24, 48, 96, 160),
        pre_nms=1000,
        proposals=64,
        pooled_size=7,
        num_classes=12,
        num_attributes=12,
        class_embedding=32,
        attribute_hidden=128,
        roi_chunk=64,
    ),
    preprocess=Preprocess(short_side=256, long_side=427),
    selection=MaxClassNMS(max_regions=36, thresholds=(0.5,), min_score=0.05, min_regions=10),
    weights="demo.safetensors",
    class_file="demo_classes.txt",
    attribute_file="demo_attributes.txt",
    training_data="procedurally drawn scenes (extractor/scenes.py)",
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (DEMO,)}


def list_extractors() -> list[str]:
    """Names that `load_extractor` takes."""
    return list(PRESETS)


def get_preset(name: str) -> Preset:
    """The preset of that name. Raises: UsageError, with the nearest names."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4) or list(PRESETS)
        raise UsageError(f"there is no model {name!r}; did you mean {', '.join(near)}? `roivault models` lists them")
    return PRESETS[name]
