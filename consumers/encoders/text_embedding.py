"""Token ids to vectors: the text half of every encoder's input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import EncoderConfig


class TextEmbedding(nn.Module):
    """Word + position + segment, layer norm, dropout (BERT and XLM-R). The segment of a text is always 0.

    Positions count 0, 1, ... from the left (BERT), or pad_id + 1, ... over the tokens that are not padding (XLM-R).
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.text_model, self.pad_id = config.text_model, config.pad_id
        self.word = nn.Embedding(config.vocab_size, config.text.hidden)
        self.position = nn.Embedding(config.max_positions, config.text.hidden)
        if config.text_types:
            self.segment = nn.Embedding(config.text_types, config.text.hidden)
        self.norm = nn.LayerNorm(config.text.hidden, config.norm_eps)
        self.drop = nn.Dropout(config.text.dropout)

    def positions(self, input_ids: Tensor) -> Tensor:
        if self.text_model == "xlm-roberta":
            real = input_ids != self.pad_id
            return real.cumsum(1) * real + self.pad_id
        return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, L] token ids -> [B, L, hidden]"""
        return self.finish(self.word(input_ids) + self.position(self.positions(input_ids)) + self.segment.weight[0])

    def finish(self, summed: Tensor) -> Tensor:
        return self.drop(self.norm(summed))
