"""Region proposals from a pyramid, in maskrcnn-benchmark's conventions: inclusive boxes, levels ranked apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.ops import nms

from .boxes import decode_inclusive, exclusive, inclusive_anchors
from .configs import FPNConfig
from .fpn import STRIDES
from .ranking import best_places
from .rpn import RPNHead


class PyramidProposalNetwork(nn.Module):
    """One head for all levels, with the anchors of each and the choice of proposals."""

    def __init__(self, config: FPNConfig):
        super().__init__()
        self.config = config
        self.rpn_head = RPNHead(config.pyramid_channels, config.pyramid_channels, len(config.anchor_ratios))

    def propose(self, logits: list[Tensor], deltas: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Proposals of one image.

        Args:
            logits: per level [A,h,w], deltas: per level [4A,h,w]: the head's output for it.
            size: (height, width) that boxes are clipped to: the last pixel is height - 1, width - 1.

        Returns:
            inclusive boxes f32[p,4] in resized pixels and their objectness f32[p], best first.
        """
        levels = zip(logits, deltas, STRIDES, self.config.anchor_sizes, strict=True)
        found = [self._propose_level(*level, size) for level in levels]
        boxes, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        scores, order = torch.sort(scores, descending=True, stable=True)
        return boxes[order[: self.config.proposals]], scores[: self.config.proposals]

    def _propose_level(self, logits, deltas, stride, anchor_size, size) -> tuple[Tensor, Tensor]:
        _, height, width = logits.shape
        # sigmoid first, as published: it may round different logits to one score
        scores = logits.permute(1, 2, 0).reshape(-1).float().sigmoid()
        order = best_places(scores, self.config.proposals_per_level)[: self.config.proposals_per_level]
        scores = scores[order]
        chosen = deltas.reshape(-1, 4, height, width).permute(2, 3, 0, 1).reshape(-1, 4)[order].float()
        ratios = self.config.anchor_ratios
        anchors = inclusive_anchors(height, width, stride, anchor_size, ratios, logits.device)[order]
        limit = chosen.new_tensor([size[1], size[0], size[1], size[0]]) - 1
        boxes = torch.minimum(decode_inclusive(anchors, chosen).clamp(min=0), limit)
        keep = nms(exclusive(boxes), scores, self.config.proposal_nms)
        return boxes[keep], scores[keep]
