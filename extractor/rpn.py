"""Region proposal network on one feature map (Ren et al. 2015, in detectron2's conventions)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import nms

from .backbone import Backbone
from .boxes import clip_boxes, decode_deltas, grid_anchors, has_area
from .configs import C4Config


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
        _, height, width = logits.shape
        scores = logits.permute(1, 2, 0).reshape(-1).float()
        # stable: a flat picture has thousands of equal logits, and their order must not depend on the machine
        scores, order = torch.sort(scores, descending=True, stable=True)
        scores, order = scores[: self.config.pre_nms], order[: self.config.pre_nms]
        chosen = deltas.reshape(-1, 4, height, width).permute(2, 3, 0, 1).reshape(-1, 4)[order].float()
        anchors = self.anchors(height, width, logits.device)[order]
        boxes = clip_boxes(decode_deltas(anchors, chosen), *size)
        valid = has_area(boxes) & torch.isfinite(scores)
        boxes, scores = boxes[valid], scores[valid]
        keep = nms(boxes, scores, self.config.proposal_nms)[: self.config.proposals]
        return boxes[keep], scores[keep]
