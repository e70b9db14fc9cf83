"""Adapters (Houlsby et al., ICML 2019) of languages and of modalities, after MAD-X (Pfeiffer et al., EMNLP 2020).

They read what a layer's last norm gives, and add to what it reads, as MAD-X has them. Which there are is what the xGQA
paper (Pfeiffer et al., Findings of ACL 2022) says of OSCAR+ Ada, whose code is not public: that these are the published
model's numbers is not known.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import EncoderConfig

LANGUAGE = re.compile(r"\.language\.(down|up)\.(weight|bias)$")  # how checkpoints call what a language has of its own


class Adapter(nn.Module):
    """x + up(relu(down(x)))"""

    def __init__(self, hidden: int, width: int):
        super().__init__()
        self.down, self.up = nn.Linear(hidden, width), nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.relu(self.down(x)))


class LayerAdapters(nn.Module):
    """Of a transformer layer: words through the adapter of their language and one of the task, regions through one of
    the task, and both through another that they share. In the last layer, where no head reads them, regions have none
    of their own."""

    def __init__(self, config: EncoderConfig, last: bool):
        super().__init__()
        hidden, (of_language, of_task) = config.text.hidden, config.adapters
        self.language = Adapter(hidden, of_language)
        self.text, self.alignment = Adapter(hidden, of_task), Adapter(hidden, of_task)
        self.image = nn.Identity() if last else Adapter(hidden, of_task)

    def forward(self, joint: Tensor, words: int) -> Tensor:
        """[B, N, hidden], the first `words` of which are text -> the same shape"""
        text, image = self.text(self.language(joint[:, :words])), self.image(joint[:, words:])
        return self.alignment(torch.cat((text, image), 1))
