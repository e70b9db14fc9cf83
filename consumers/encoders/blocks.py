"""Sublayers over two streams: attention (within and across) and feed-forward, post-norm as in BERT.

A stream without a part in a sublayer passes through unchanged. Encoders of one stream call `joint` on the concatenation
of text and image, which gives the same numbers as `forward` on the two and saves the splitting.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TEXT, Attention, EncoderConfig, FeedForward, Sublayer


class AttentionSide(nn.Module):
    """One stream's half: its projections, its output and its norm."""

    def __init__(self, hidden: int, width: int, heads: int, dropout: float, attention_dropout: float, eps: float):
        super().__init__()
        self.heads, self.attention_dropout = heads, attention_dropout
        self.q, self.k, self.v = (nn.Linear(hidden, width) for _ in range(3))
        self.out = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden, eps)
        self.drop = nn.Dropout(dropout)

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def queries(self, x: Tensor) -> Tensor:
        return self._split(self.q(x))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._split(self.k(x)), self._split(self.v(x))

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x [B, N, hidden] over keys and values [B, heads, M, d], mask [B, M] or [B, N, M] -> [B, N, hidden]"""
        rate = self.attention_dropout if self.training else 0.0
        mask = mask[:, None, None] if mask.ndim == 2 else mask[:, None]
        found = F.scaled_dot_product_attention(self.queries(x), keys, values, mask, rate)
        return self.norm(self.drop(self.out(found.transpose(1, 2).flatten(2))) + x)


class FeedForwardSide(nn.Module):
    def __init__(self, hidden: int, width: int, dropout: float, eps: float):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(hidden, width), nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden, eps)
        self.drop = nn.Dropout(dropout)

    def summed(self, x: Tensor) -> Tensor:
        """What the norm reads."""
        return self.drop(self.fc2(F.gelu(self.fc1(x)))) + x

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.summed(x))


class Block(nn.Module):
    """A sublayer. `text` and `image` are its sides; a shared one has a single side under the name `text`."""

    def __init__(self, step: Sublayer):
        super().__init__()
        self.step = step
        self.shared = step.shared and len(step.streams) == 2

    def _side(self, stream: str) -> nn.Module:
        return getattr(self, TEXT if self.shared else stream)

    def own_sides(self) -> tuple[str, ...]:
        return (TEXT,) if self.shared else self.step.streams


class AttentionBlock(Block):
    def __init__(self, config: EncoderConfig, step: Attention):
        super().__init__(step)
        for name in self.own_sides():
            own = getattr(config, name)
            width, heads = config.attention_size(step, name)
            side = AttentionSide(own.hidden, width, heads, own.dropout, own.attention_dropout, config.norm_eps)
            self.add_module(name, side)

    def joint(self, x: Tensor, mask: Tensor, rows: list[int] | None = None) -> Tensor:
        """[B, N, hidden], mask bool [B, N] (of the keys) or [B, N, N] -> [B, N, hidden], or only the rows asked for"""
        if mask.ndim == 3 and rows is not None:
            mask = mask[:, rows]
        return self.text.attend(x if rows is None else x[:, rows], *self.text.keys_values(x), mask)

    def forward(
        self, streams: dict[str, Tensor], masks: dict[str, Tensor], first_only: bool = False
    ) -> dict[str, Tensor]:
        """Vectors and key masks by stream name -> vectors, or only the first of each stream. A stream that is not given
        is not computed."""
        present = [name for name in self.step.streams if name in streams]
        pairs = {name: self._side(name).keys_values(streams[name]) for name in present}
        changed = {}
        for name in present:
            seen = getattr(self.step, name)
            keys, values = (torch.cat([pairs[other][n] for other in seen], 2) for n in (0, 1))
            mask = torch.cat([masks[other] for other in seen], 1)
            queries = streams[name][:, :1] if first_only else streams[name]
            changed[name] = self._side(name).attend(queries, keys, values, mask)
        return {name: changed.get(name, x[:, :1] if first_only else x) for name, x in streams.items()}


class FeedForwardBlock(Block):
    def __init__(self, config: EncoderConfig, step: FeedForward):
        super().__init__(step)
        for name in self.own_sides():
            own = getattr(config, name)
            width = getattr(step, f"{name}_width") or own.ffn
            self.add_module(name, FeedForwardSide(own.hidden, width, own.dropout, config.norm_eps))

    def joint(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, N, hidden] -> [B, N, hidden]; the mask is not needed."""
        return self.text(x)

    def forward(self, streams: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        return streams | {name: self._side(name)(streams[name]) for name in self.step.streams if name in streams}


def build_block(config: EncoderConfig, step: Sublayer) -> Block:
    return AttentionBlock(config, step) if isinstance(step, Attention) else FeedForwardBlock(config, step)
