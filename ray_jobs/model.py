"""The model of a job: how its records are made, and the step over decoded images that every engine runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cache import Failure, Regions, RoivaultError
from extractor import DecodePolicy, Preset
from extractor.given_boxes import BoxExtractor, GivenBoxes
from extractor.images import DecodedImage
from extractor.preset import fingerprint
from extractor.weights import weights_path, weights_sha256


class Model(Protocol):
    """The part of an extractor that a job uses."""

    device: Any
    precision: str
    policy: DecodePolicy

    def decode(self, source: bytes, key: str) -> DecodedImage: ...

    def extract(self, images: Sequence[DecodedImage], keys: Sequence[str]) -> list[Regions | Failure]: ...


@dataclass(frozen=True)
class Choices:
    """How records are made, after `auto` and omitted options took the store's values."""

    preset: Preset
    weights: str | None
    device: str
    precision: str
    dtype: str
    policy: DecodePolicy
    threads: int
    boxes: GivenBoxes | None = None

    def fingerprint(self) -> dict[str, str | int | float | bool]:
        """For the store: everything that may change a byte of a record. `precision` must be resolved."""
        sha256 = weights_sha256(weights_path(self.preset, self.weights), self.preset.part)
        extractor = fingerprint(self.preset, sha256, self.precision, self.policy)
        given = self.boxes.choices() if self.boxes is not None else {}
        return {**extractor, "feature_dtype": self.dtype, "given_boxes": self.boxes is not None, **given}


Load = Callable[[Choices], Model]


def load_model(choices: Choices) -> Model:
    """The extractor of a job, on its device and threads."""
    import torch

    from extractor import load_extractor

    torch.set_num_threads(choices.threads)
    model = load_extractor(choices.preset.name, choices.weights, choices.device, choices.precision, choices.policy)
    return BoxExtractor(model, choices.boxes) if choices.boxes is not None else model


def run_model(
    model: Model, images: Sequence[DecodedImage], keys: Sequence[str], sources: Sequence[str]
) -> list[Regions | Failure]:
    """Regions of decoded images; failures name the source. Raises: RuntimeError for a bug, naming the images."""
    try:
        results = model.extract(images, keys)
    except RoivaultError:
        raise
    except Exception as error:
        where = ", ".join(f"{key!r} ({source})" for key, source in zip(keys, sources, strict=True))
        raise RuntimeError(f"the model stopped with {type(error).__name__}: {error}, in one of {where}") from error
    return [
        replace(result, source=source) if isinstance(result, Failure) else result
        for source, result in zip(sources, results, strict=True)
    ]
