"""Orders that do not depend on the machine when values are equal."""

from __future__ import annotations

import torch
from torch import Tensor


def best_places(values: Tensor, count: int) -> Tensor:
    """Places i64[n >= count] of the greatest `values` [m], best first; the earlier place first among equals; count > 0.

    More than `count` come back when values equal the last one that is asked for, fewer when there are fewer. NaN is
    never among them.
    """
    wanted = ~values.isnan()
    if count < len(values):
        wanted &= values >= torch.where(wanted, values, -torch.inf).topk(count, sorted=False).values.min()
    places = torch.nonzero(wanted).squeeze(1)
    return places[torch.sort(values[places], descending=True, stable=True).indices]
