"""Which device and number format the detector runs in, and the settings that keep its results exact there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from cache import UsageError

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def resolve_precision(precision: str) -> str:
    """One of PRECISIONS; "auto" is float32, the reference. Raises: UsageError."""
    if precision == "auto":
        return "float32"
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r} is not known; use auto, {', '.join(PRECISIONS)}")
    return precision


@contextmanager
def exact_numerics(device: torch.device, precision: str) -> Iterator[None]:
    """float32 means float32: TF32, bfloat16 products and cudnn's timing-based choices are off inside, restored after.

    Lower precisions run under autocast.
    """
    backends = torch.backends
    products = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
    before = [product.fp32_precision for product in products]
    choices = backends.cudnn.benchmark, backends.cudnn.deterministic
    try:
        for product in products:
            product.fp32_precision = "ieee"
        backends.cudnn.benchmark, backends.cudnn.deterministic = False, True
        with ExitStack() as stack:
            if (dtype := PRECISIONS[precision]) is not None:
                stack.enter_context(torch.autocast(device.type, dtype=dtype))
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
