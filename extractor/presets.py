"""What each extractor is: architecture, preprocessing, selection and vocabulary, attached to its weights.

Light on purpose (no torch): listing the models must be instant. A new detector is one entry here plus, when it needs
one, a module with its network; see docs/adding-an-extractor.md.
"""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cache import UsageError

from .configs import C4Config, MaxClassNMS, PerClassNMS, Preprocess

if TYPE_CHECKING:
    from .images import DecodePolicy


class Architecture(Protocol):
    """What every architecture says about itself; the rest is between it and its network."""

    network: str  # "module:Class" of the network; see `networks.Network` for what the class does
    num_classes: int
    num_attributes: int
    roi_chunk: int  # RoIs per pass of the region head

    @property
    def dim(self) -> int:
        """Length of a feature vector."""
        ...


@dataclass(frozen=True)
class Preset:
    """A detector with everything that decides its output.

    `revision` rises whenever the same weights would give other records; stores refuse to mix revisions.
    `weights` is a safetensors file: one in extractor/data, or what the checkpoint at one of `urls` is converted to.
    `class_file` and `attribute_file` are vocabularies in extractor/data, one name a line (synonyms after a comma);
    an empty name means that there is none.
    """

    name: str
    revision: int
    summary: str
    architecture: Architecture
    preprocess: Preprocess
    selection: Any  # a rule that `selection.select` knows
    weights: str
    class_file: str
    attribute_file: str
    training_data: str
    urls: tuple[str, ...] = ()

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
        if self.urls:
            return cache_folder() / "weights" / self.weights
        return Path(str(files("extractor").joinpath("data", self.weights)))

    def choices(self) -> dict[str, str | int | float]:
        """The preset's settings, flat, for a store's fingerprint."""
        flat: dict[str, str | int | float] = {"preset": self.name, "preset_revision": self.revision}
        for part in ("preprocess", "selection"):
            for name, value in asdict(getattr(self, part)).items():
                flat[f"{part}.{name}"] = list_text(value) if isinstance(value, tuple) else value
        return flat


def cache_folder() -> Path:
    """Where downloaded weights are kept: $ROIVAULT_HOME, else `roivault` in the platform's folder for such things."""
    if home := os.environ.get("ROIVAULT_HOME"):
        return Path(home).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "roivault"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "roivault"


def list_text(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def fingerprint(
    preset: Preset, weights_sha256: str, precision: str, policy: DecodePolicy
) -> dict[str, str | int | float]:
    """Everything that may change a byte of a record, flat: it can be told without loading the model.

    Args:
        weights_sha256: of the checkpoint, as `weights.weights_sha256` tells it.
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
    if not name:
        return ()
    text = files("extractor").joinpath("data", name).read_text(encoding="utf-8")
    return tuple(line.split(",")[0].strip().lower() for line in text.splitlines())


DEMO = Preset(
    name="demo",
    revision=1,
    summary="small C4 detector of drawn shapes with colour and texture attributes; ships with the package",
    architecture=C4Config(
        stem_channels=32,
        widths=(24, 48, 96, 96),
        channels=(64, 128, 256, 384),
        blocks=(2, 2, 3, 2),
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

VG_R101 = Preset(
    name="vg-r101",
    revision=1,
    summary="bottom-up attention: ResNet-101 C4, 1600 classes, 400 attributes, 36 regions; images at 800/1333",
    architecture=C4Config(),
    preprocess=Preprocess(),
    selection=MaxClassNMS(),
    weights="vg_r101_36.safetensors",
    class_file="vg_classes.txt",
    attribute_file="vg_attributes.txt",
    training_data="Visual Genome",
    urls=(
        "http://nlp.cs.unc.edu/models/faster_rcnn_from_caffe_attr.pkl",
        "https://nlp1.cs.unc.edu/models/faster_rcnn_from_caffe_attr.pkl",
        "https://huggingface.co/unc-nlp/frcnn-vg-finetuned/resolve/main/pytorch_model.bin",
    ),
)

VG_R101_BUTD = replace(
    VG_R101,
    name="vg-r101-butd",
    summary="vg-r101 with images at 600/1000, the rule of the original features and of LXMERT",
    preprocess=Preprocess(short_side=600, long_side=1000),
)

VG_R101_ADAPTIVE = replace(
    VG_R101,
    name="vg-r101-adaptive",
    summary="the ResNet-101 C4 network with the weights for 10-100 regions by confidence; not the Caffe pipeline",
    selection=PerClassNMS(threshold=0.3),
    weights="vg_r101_10_100.safetensors",
    urls=(
        "http://nlp.cs.unc.edu/models/faster_rcnn_from_caffe_attr_original.pkl",
        "https://nlp1.cs.unc.edu/models/faster_rcnn_from_caffe_attr_original.pkl",
    ),
)

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (DEMO, VG_R101, VG_R101_BUTD)
}


def list_extractors() -> list[str]:
    """Names that `load_extractor` takes."""
    return list(PRESETS)


def get_preset(name: str) -> Preset:
    """The preset of that name. Raises: UsageError, with the nearest names."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4) or list(PRESETS)
        raise UsageError(f"there is no model {name!r}; did you mean {', '.join(near)}? `roivault models` lists them")
    return PRESETS[name]
