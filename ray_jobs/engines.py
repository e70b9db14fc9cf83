"""What runs a job: the engines there are, and which one it is when the user does not say."""

from __future__ import annotations

import glob
import importlib.util
import logging
import os
import sys
from typing import Protocol

from cache import UsageError

from .doctor import install_hint
from .local import LocalEngine
from .model import Choices, Load
from .options import ExtractOptions
from .signals import Drain
from .work import Work

log = logging.getLogger("roivault")


class Engine(Protocol):
    """Runs the stages of a job. Nothing is loaded or started before one of the methods but `close` is called."""

    name: str

    def prepare(self) -> None:
        """Called, perhaps often, while a listing is slow to begin: start what takes its time, save for models."""

    def precision(self) -> str:
        """What `auto` means where the models are."""

    def device(self) -> str:
        """Where the models are."""

    def run(self, work: Work) -> None:
        """Process every task of `work`."""

    def close(self) -> None:
        """Give back what the engine holds, after the store is closed."""


def make_engine(options: ExtractOptions, choices: Choices, load: Load, drain: Drain) -> Engine:
    """The engine that the user chose: Ray for a cluster or several GPUs, else this process.

    Raises:
        UsageError: Ray cannot do what is asked, or is not installed.
    """
    if (options.engine or _default(options)) == "local":
        return LocalEngine(load, choices, drain)
    if options.device.startswith("cuda:"):
        raise UsageError(f"--device {options.device} names one GPU; with --engine ray give cuda, or use --engine local")
    if not _has_ray():
        raise UsageError(f"--engine ray needs Ray, which is not installed: {install_hint('ray')}")
    from .ray_environment import prepare_environment

    address = prepare_environment(options.address)
    from .ray_engine import RayEngine

    return RayEngine(load, choices, drain, options, address)


def _default(options: ExtractOptions) -> str:
    if options.address:
        return "ray"
    gpus = 0 if options.device == "cpu" or options.device.startswith("cuda:") else gpu_count()
    if gpus < 2:
        return "local"
    if _has_ray():
        return "ray"
    text = f"{gpus} GPUs are here, but only one is used without Ray: {install_hint('ray')}"
    log.warning("%s", text)
    if not options.quiet:
        print(text, file=sys.stderr)
    return "local"


def gpu_count() -> int:
    """How many NVIDIA GPUs this process may use, without loading torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None
