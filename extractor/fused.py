"""A convolution with the sum and the ReLU that follow it in one pass over the map, where torch's CPU library does that.

The operators are those that torch.compile puts in their place. In float32 the result has the same bits; in bfloat16 it
is rounded once instead of twice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = (torch.float32, torch.bfloat16)
HAS_OPERATORS = all(hasattr(torch.ops.mkldnn, name) for name in ("_convolution_pointwise", "_convolution_pointwise_"))


def conv_relu(conv: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(conv(x) + residual); `residual` may be overwritten with it. A module may have a `conv_relu` of its own."""
    if hasattr(conv, "conv_relu"):
        return conv.conv_relu(x, residual)
    if _fuses(conv, x, residual):
        arguments = (x, conv.weight, conv.bias, conv.padding, conv.stride, conv.dilation, conv.groups)
        if residual is None:
            return torch.ops.mkldnn._convolution_pointwise(*arguments, "relu", [], "")
        operator = torch.ops.mkldnn._convolution_pointwise_.binary
        return operator(residual, *arguments, "add", 1.0, "relu", [], "")
    result = conv(x)
    return F.relu(result if residual is None else result.add_(residual), inplace=True)


def _fuses(conv: nn.Module, *maps: Tensor | None) -> bool:
    """Whether it is a convolution on a CPU whose norm is merged, hence one that is not trained; channels last."""
    merged = isinstance(conv, nn.Conv2d) and isinstance(getattr(conv, "norm", None), nn.Identity)
    return (HAS_OPERATORS and merged) and all(
        x is None
        or (x.device.type == "cpu" and x.dtype in DTYPES and x.is_contiguous(memory_format=torch.channels_last))
        for x in maps
    )
