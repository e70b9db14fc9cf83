"""What a network has to do, and how one is made from its architecture, loaded and got ready to run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .detections import Detections
from .devices import DTYPES
from .pointwise import use_pointwise
from .stepwise import use_stepwise
from .weights import load_weights
from .winograd import use_winograd


class Network(Protocol):
    """A torch module made from its architecture: `Class(architecture)`.

    Its state_dict has the tensors of a checkpoint under canonical names (tensor_names.py).

    Attributes:
        reduced: names of the submodules that run in a lower precision when one is asked for. They take inputs of the
            dtype of their weights; everything else stays float32.
        stepwise: optional, names of submodules that keep their norms in float32 on CPUs, to round as published.
        planewise: optional, names within those whose maps lie plane by plane.
        part: optional, a regular expression for how the names begin of the tensors that are read of a checkpoint.
        small_maps: optional, names of submodules that see many small maps, whose convolutions may round otherwise.
        unused_tensors: optional, a regular expression for tensors of a checkpoint that are not needed.
        default_tensors: optional, a method that gives tensors by name which a checkpoint may lack.
        doubts: optional, a method that takes the tensors of a checkpoint and tells what to warn of, "" for nothing.
        complete: optional, a method that takes the `Detections` that were kept and adds what depends on it.
        known_faults: optional, a method that gives the network as others run it by mistake, by what is wrong then.
        needs_frames: optional, True where `detect` also takes `frames`, the `preprocess.Frame` of each image.
    """

    reduced: tuple[str, ...]

    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; None where a feature map is not finite.

        What is said about a RoI must not depend on the other RoIs or, on a CPU, on the other images.

        Args:
            images: f32[B,3,h,w], preprocessed, all of one size, none padded.
            rois: boxes to describe instead of proposals, f32[k,4] per image in pixels of these images.
            chunk: RoIs per pass of the region head; None means the architecture's `roi_chunk`.
        """
        ...


def network_class(architecture: Any) -> type[nn.Module]:
    """The class that an architecture names as "module:Class"."""
    module, _, name = architecture.network.partition(":")
    return getattr(import_module(module), name)


def empty_network(architecture: Any) -> nn.Module:
    """The network with the names and shapes of its tensors but no memory for them."""
    with torch.device("meta"):
        return network_class(architecture)(architecture)


def load_network(architecture: Any, weights: Path, device: torch.device, precision: str) -> nn.Module:
    """The network with the checkpoint's weights, ready to run.

    Raises: WeightsError, see `load_weights`.
    """
    network = network_class(architecture)(architecture)
    load_weights(network, weights)
    return make_fast(network, device, precision)


def make_fast(network: nn.Module, device: torch.device, precision: str) -> nn.Module:
    """The network ready to run; it can no longer be trained or loaded.

    Modules with a method `fold` are made cheaper by it, such as by merging a frozen norm into its convolution. Maps lie
    in memory pixel by pixel (channels last), which is what both CPUs and GPUs are fastest at.
    """
    network.eval().requires_grad_(False)
    if device.type == "cpu" and precision == "float32":
        use_stepwise(network, getattr(network, "stepwise", ()), getattr(network, "planewise", ()))
    for module in network.modules():
        if hasattr(module, "fold"):
            module.fold()
    for name in network.reduced:
        network.get_submodule(name).to(DTYPES[precision])
    if device.type == "cpu":
        small_maps = getattr(network, "small_maps", ())
        use_winograd(network, small_maps)
        use_pointwise(network, small_maps)
    return network.to(device, memory_format=torch.channels_last)
