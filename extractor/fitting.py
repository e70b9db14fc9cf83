"""Which of the models a checkpoint is for, when it is not for the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cache import WeightsError

from .networks import empty_network
from .presets import PRESETS
from .weights import named_tensors


def models_for(loaded: Mapping[str, Tensor]) -> list[str]:
    """Names of the presets whose network takes a checkpoint's tensors, by their names and shapes.

    Networks of other packages are not looked at: importing those takes longer than reading the checkpoint.
    """
    fits: dict[Any, bool] = {}
    for preset in PRESETS.values():
        architecture = preset.architecture
        if architecture not in fits:
            fits[architecture] = not hasattr(architecture, "package") and _fits(architecture, loaded)
    return [name for name, preset in PRESETS.items() if fits[preset.architecture]]


def _fits(architecture: Any, loaded: Mapping[str, Tensor]) -> bool:
    try:
        return not named_tensors(empty_network(architecture), loaded)[1]
    except WeightsError:
        return False
