"""Which device and number format the detector runs in, and the settings that keep its results exact there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cache import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:N"; auto is the GPU when torch sees one.

    Raises: UsageError when the device is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device {device!r} is not known; use auto, cpu, cuda or cuda:N") from error
    if resolved.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(f"device {device!r} was asked for but torch sees {count} GPUs; run `roivault doctor`")
    return resolved


def resolve_precision(precision: str, device: torch.device | None = None, faithful: Sequence[str] = ()) -> str:
    """One of DTYPES; "auto" is the first `faithful` one that the device is fast in, else float32, the reference.

    Raises: UsageError.
    """
    if precision == "auto":
        return next((name for name in faithful if device is not None and is_fast(device, name)), "float32")
    if precision not in DTYPES:
        raise UsageError(f"precision {precision!r} is not known; use auto, {', '.join(DTYPES)}")
    return precision


def is_fast(device: torch.device, precision: str) -> bool:
    """Whether the device has matrix units for a lower precision; elsewhere it saves no time."""
    if device.type == "cuda":
        oldest = (8, 0) if precision == "bfloat16" else (7, 0)
        return torch.cuda.get_device_capability(device) >= oldest
    return precision == "bfloat16" and getattr(torch.cpu, "_is_amx_tile_supported", bool)()


@contextmanager
def exact_numerics() -> Iterator[None]:
    """float32 means float32: TF32, bfloat16 products and cudnn's choices by timing are off inside, restored after."""
    backends = torch.backends
    products = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
    before = [product.fp32_precision for product in products]
    choices = backends.cudnn.benchmark, backends.cudnn.deterministic
    try:
        for product in products:
            product.fp32_precision = "ieee"
        backends.cudnn.benchmark, backends.cudnn.deterministic = False, True
        yield
    finally:
        for product, value in zip(products, before, strict=True):
            product.fp32_precision = value
        backends.cudnn.benchmark, backends.cudnn.deterministic = choices


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on a GPU, in torch's CPU allocator or in Python."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
