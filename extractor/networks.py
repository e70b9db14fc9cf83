"""From an architecture's name for its network to the network itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def network_class(architecture: Any) -> type[torch.nn.Module]:
    """The class that an architecture names as "module:Class"."""
    module, _, name = architecture.network.partition(":")
    return getattr(import_module(module), name)


def empty_network(architecture: Any) -> torch.nn.Module:
    """The network with the names and shapes of its tensors but no memory for them."""
    with torch.device("meta"):
        return network_class(architecture)(architecture)
