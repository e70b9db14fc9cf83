"""What a preset is: a detector with everything that decides its output, attached to its weights. Needs no torch."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cache.files import cache_folder

from .configs import Preprocess

if TYPE_CHECKING:
    from .images import DecodePolicy


@dataclass(frozen=True)
class Preset:
    """A detector with everything that decides its output.

    `revision` rises whenever the same weights would give other records; stores refuse to mix revisions.
    `weights` is a safetensors file: one in extractor/data, or what the checkpoint at one of `urls` is converted to.
    `class_file` and `attribute_file` are vocabularies in extractor/data, one name a line (synonyms after a comma);
    an empty name means that there is none. `faithful` are the lower precisions that `auto` may choose, best first:
    those in which the detector keeps its regions, as benchmarks/fidelity.py measures it.
    """

    name: str
    revision: int
    summary: str
    architecture: Any  # `Architecture`, or a dataclass with the same fields and more
    preprocess: Preprocess
    selection: Any  # a rule that `selection.select` knows
    weights: str
    class_file: str
    attribute_file: str
    training_data: str
    urls: tuple[str, ...] = ()
    faithful: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Length of a feature vector."""
        return self.architecture.dim

    @property
    def part(self) -> str:
        """How the names begin of the tensors that it reads of a checkpoint, a regular expression; all where empty."""
        return getattr(self.architecture, "part", "")

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
            return weights_folder() / self.weights
        return Path(str(files("extractor").joinpath("data", self.weights)))

    def choices(self) -> dict[str, str | int | float]:
        """The preset's settings, flat, for a store's fingerprint."""
        flat: dict[str, str | int | float] = {"preset": self.name, "preset_revision": self.revision}
        flat["architecture"] = hashlib.sha256(repr(self.architecture).encode()).hexdigest()[:16]
        for part in ("preprocess", "selection"):
            for name, value in asdict(getattr(self, part)).items():
                flat[f"{part}.{name}"] = list_text(value) if isinstance(value, tuple) else value
        return flat


def weights_folder() -> Path:
    """Where converted checkpoints lie."""
    return cache_folder() / "weights"


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
