"""Region proposal networks (Ren et al. 2015): on one feature map by detectron2's conventions, on a pyramid by
maskrcnn-benchmark's, where boxes are inclusive and levels are ranked apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import nms

from .backbone import Backbone
from .boxes import clip_boxes, decode_deltas, decode_inclusive, exclusive, grid_anchors, has_area, inclusive_anchors
from .configs import C4Config, FPNConfig
from .fpn import STRIDES
from .ranking import best_places


class RPNHead(nn.Module):
    """Map [B,C,h,w] to objectness logits [B,A,h,w] and anchor deltas [B,4A,h,w]."""

    def __init__(self, channels: int, hidden: int, anchors: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, hidden, 3, padding=1)
        self.objectness_logits = nn.Conv2d(hidden, anchors, 1)
        self.anchor_deltas = nn.Conv2d(hidden, anchors * 4, 1)

    def forward(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.conv(feature), inplace=True).float()  # rounded logits would tie, and ranks be chance
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


def by_anchor(logits: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """One image's head output, [A,h,w] and [4A,h,w], as f32[h*w*A] and f32[h*w*A,4], in the order of its anchors."""
    _, height, width = logits.shape
    deltas = deltas.reshape(-1, 4, height, width).permute(2, 3, 0, 1)
    return logits.permute(1, 2, 0).reshape(-1).float(), deltas.reshape(-1, 4).float()


class ProposalNetwork(nn.Module):
    """The RPN head with its anchors and the choice of proposals."""

    def __init__(self, config: C4Config):
        super().__init__()
        self.config = config
        self.rpn_head = RPNHead(
            config.channels[2], config.rpn_channels, len(config.anchor_sizes) * len(config.anchor_ratios)
        )

    def anchors(self, height: int, width: int, device=None) -> Tensor:
        """f32[height*width*A,4] in pixels of the resized image, (row, column, anchor) order."""
        return grid_anchors(height, width, Backbone.stride, self.config.anchor_sizes, self.config.anchor_ratios, device)

    def propose(self, logits: Tensor, deltas: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Proposals of one image.

        Args:
            logits: [A,h,w], deltas: [4A,h,w]: the head's output for it.
            size: (height, width) of the resized image in pixels; boxes are clipped to it.

        Returns:
            boxes f32[p,4] in resized pixels and their logits f32[p], best first; p is at most config.proposals.
        """
        scores, deltas = by_anchor(logits, deltas)
        order = best_places(scores, self.config.pre_nms)[: self.config.pre_nms]
        scores, anchors = scores[order], self.anchors(*logits.shape[1:], logits.device)[order]
        boxes = clip_boxes(decode_deltas(anchors, deltas[order]), *size)
        valid = has_area(boxes) & torch.isfinite(scores)
        boxes, scores = boxes[valid], scores[valid]
        keep = nms(boxes, scores, self.config.proposal_nms)[: self.config.proposals]
        return boxes[keep], scores[keep]


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
        scores, deltas = by_anchor(logits, deltas)
        scores = scores.sigmoid()  # first, as published: it may round different logits to one score
        order = best_places(scores, self.config.proposals_per_level)[: self.config.proposals_per_level]
        scores, deltas = scores[order], deltas[order]
        ratios = self.config.anchor_ratios
        anchors = inclusive_anchors(*logits.shape[1:], stride, (anchor_size,), ratios, logits.device)[order]
        limit = deltas.new_tensor([size[1], size[0], size[1], size[0]]) - 1
        boxes = torch.minimum(decode_inclusive(anchors, deltas).clamp(min=0), limit)
        keep = nms(exclusive(boxes), scores, self.config.proposal_nms)
        return boxes[keep], scores[keep]
