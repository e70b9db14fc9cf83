"""The object and attribute detector of VinVL (Zhang et al. 2021) as its code, scene_graph_benchmark, runs it.

Regions keep their proposals' boxes, which is how features are extracted; its box regression serves detection only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import nms

from .aligned_head import AlignedHead
from .backbone import Backbone, Norm
from .boxes import decode_inclusive, inclusive_anchors
from .detections import Detections
from .detector import Detector
from .fpn import NormWithoutEpsilon
from .preprocess import Frame, centred, frame, network_input, ordered, planes
from .ranking import best_places, rank_by_survival, shared_boxes
from .resize import resize_pillow
from .rpn import RPNHead, by_anchor
from .selection import Selection, nms_per_class, select
from .vinvl_presets import TruncatedPreprocess, VinVLConfig, VinVLFilter

HALVINGS = 10  # of the score that kind 0 asks for
FAINTEST = 0.01  # of the score that kind 2 asks for: below it, nothing takes part


class VinVLProposalNetwork(nn.Module):
    """The RPN head with inclusive anchors and the choice of proposals."""

    def __init__(self, config: VinVLConfig):
        super().__init__()
        self.config = config
        anchors = len(config.anchor_sizes) * len(config.anchor_ratios)
        self.rpn_head = RPNHead(config.channels[2], config.rpn_channels, anchors)

    def propose(self, logits: Tensor, deltas: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Proposals of one image.

        Args:
            logits: [A,h,w], deltas: [4A,h,w]: the head's output for it.
            size: (height, width) of the resized image in pixels; corners are clipped to its last ones.

        Returns:
            inclusive boxes f32[p,4], p at most config.proposals, and their objectness f32[p], best first.
        """
        height, width = logits.shape[1:]
        scores, deltas = by_anchor(logits, deltas)
        scores = scores.sigmoid()  # first, as published: it may round different logits to one score
        order = best_places(scores, self.config.pre_nms)[: self.config.pre_nms]
        sizes, ratios = self.config.anchor_sizes, self.config.anchor_ratios
        anchors = inclusive_anchors(height, width, Backbone.stride, sizes, ratios, logits.device)
        boxes = decode_inclusive(anchors[order], deltas[order]).clamp(min=0)
        boxes = torch.minimum(boxes, boxes.new_tensor([size[1], size[0], size[1], size[0]]) - 1)
        # suppression is torchvision's: unlike everything else it takes corners as continuous
        keep = nms(boxes, scores[order], self.config.proposal_nms)[: self.config.proposals]
        return boxes[keep], scores[order][keep]


class AttributePredictor(nn.Module):
    """Attribute logits [k,1+A] of region features [k,d] and class ids i64[k]; 0 means none, in both."""

    def __init__(self, config: VinVLConfig):
        super().__init__()
        self.cls_embedding = nn.Embedding(config.num_classes + 1, config.class_embedding)
        self.fc_attr = nn.Linear(config.dim + config.class_embedding, config.attribute_hidden)
        self.attr_score = nn.Linear(config.attribute_hidden, config.num_attributes + 1)

    def forward(self, features: Tensor, class_ids: Tensor) -> Tensor:
        hidden = self.fc_attr(torch.cat((features, self.cls_embedding(class_ids)), dim=1))
        return self.attr_score(F.relu(hidden))


class VinVLDetector(Detector):
    """Backbone, proposal network, region head and attribute head under the names of VinVL's checkpoint."""

    # the attribute head's stage is the region head's, and stands twice in the file
    unused_tensors = r"attribute\.feature_extractor\.|roi_heads\.box_predictor\.bbox_pred\."

    def __init__(self, config: VinVLConfig, norm: Norm = NormWithoutEpsilon):
        nn.Module.__init__(self)
        self.config = config
        self.backbone = nn.Sequential()
        self.backbone.add_module("bottom_up", Backbone(config, norm, config.groups, caffe_pool=False))
        self.proposal_generator = VinVLProposalNetwork(config)
        self.roi_heads = AlignedHead(config, config.groups, 0, aligned=False, norm=norm)
        self.roi_heads.box_predictor = nn.ModuleDict({"cls_score": nn.Linear(config.dim, config.num_classes + 1)})
        self.attribute = nn.ModuleDict({"predictor": AttributePredictor(config)})

    def predict(self, rois: Tensor, features: Tensor, size: tuple[int, int]) -> Detections:
        """Detections of rois f32[k,4] from their region features [k,d], without attributes."""
        class_scores = self.roi_heads.box_predictor["cls_score"](features).softmax(dim=1)[:, 1:]
        class_probs, class_ids = class_scores.max(dim=1)
        return Detections(rois, rois, features, class_ids, class_probs, class_scores)

    @torch.inference_mode()
    def complete(self, kept: Detections) -> Detections:
        """The regions of a record with their attributes, which depend on the class that the selection gave them."""
        chunk, parts = self.config.roi_chunk, []
        missing = -len(kept) % chunk
        features = F.pad(kept.features, (0, 0, 0, missing))
        class_ids = F.pad(kept.class_ids + 1, (0, missing))
        for part in zip(features.split(chunk), class_ids.split(chunk), strict=True):
            parts.append(self.attribute["predictor"](*part).softmax(dim=1)[:, 1:].max(dim=1))
        probs, ids = (torch.cat(column)[: len(kept)] for column in zip(*parts, strict=True))
        return replace(kept, attr_ids=ids, attr_probs=probs)


@frame.register
def _(rule: TruncatedPreprocess, height: int, width: int) -> Frame:
    new_height, new_width = truncated_size(height, width, rule.short_side, rule.long_side)
    return Frame(width, height, (new_height, new_width), (new_width / width, new_height / height))


@network_input.register
def _(rule: TruncatedPreprocess, rgb: np.ndarray, to: Frame) -> Tensor:
    resized = resize_pillow(np.ascontiguousarray(ordered(rule, rgb)), to.size).astype(np.float32)
    return planes(centred(rule, resized / np.float32(255) * np.float32(255)))  # there and back, as published


def truncated_size(height: int, width: int, short: int, longest: int) -> tuple[int, int]:
    """Target size (height, width) of maskrcnn-benchmark's Resize, as scene_graph_benchmark has it.

    The long side follows from the short one and is rounded down; where it would exceed `longest`, the short side
    becomes what brings it there, rounded half to even. 427x640 with 600 and 1000 gives 600x899.
    """
    least, most = min(height, width), max(height, width)
    if most / least * short > longest:
        short = max(round(longest * least / most), 1)
    other = most if least == short else int(short * most / least)
    return (short, other) if height <= width else (other, short)


@select.register
def _(rule: VinVLFilter, found: Detections, to: Frame) -> Selection:
    rows, classes, scores = FILTERS[rule.kind](found, rule)
    boxes = found.rois[rows] * found.rois.new_tensor(to.to_original)
    # a proposal that is less than a pixel wide ends, counted inclusively, before it starts
    boxes = torch.cat((boxes[:, :2], torch.maximum(boxes[:, :2], boxes[:, 2:])), dim=1)
    return Selection(rows, boxes, scores, classes)


def filter_classes(found: Detections, rule: VinVLFilter) -> tuple[Tensor, Tensor, Tensor]:
    """Kind 1: rows i64[n], classes i64[n] and scores f32[n], best first."""
    overlaps = shared_boxes(found.rois, rule.threshold)
    rows, scores = rank_by_survival(torch.nan_to_num(found.class_scores), overlaps, rule.max_regions)
    count = max(rule.min_regions, int((scores >= rule.min_score).sum()))
    rows, scores = rows[:count], scores[:count]
    return rows, (found.class_scores[rows] == scores[:, None]).int().argmax(dim=1), scores


def filter_once(found: Detections, rule: VinVLFilter) -> tuple[Tensor, Tensor, Tensor]:
    """Kind 2: the same, each region under its most probable class."""
    upright = (found.rois[:, 2:] >= found.rois[:, :2]).all(dim=1)
    candidates = torch.nonzero(upright & (found.class_probs > FAINTEST * rule.min_score)).squeeze(1)
    rows = candidates[nms(found.rois[candidates], found.class_probs[candidates], rule.threshold)]
    count = max(rule.min_regions, int((found.class_probs[rows] >= rule.min_score).sum()))
    rows = rows[: min(count, rule.max_regions)]
    return rows, found.class_ids[rows], found.class_probs[rows]


def filter_pairs(found: Detections, rule: VinVLFilter) -> tuple[Tensor, Tensor, Tensor]:
    """Kind 0: the same in the order of the classes, within a class best first."""
    for halving in range(HALVINGS + 1):
        rows, classes = torch.nonzero(found.class_scores > rule.min_score / 2**halving, as_tuple=True)
        scores = found.class_scores[rows, classes]
        keep = nms_per_class(found.rois[rows], scores, classes, rule.threshold)
        if len(keep) >= rule.min_regions:
            break
    if len(keep) > rule.max_regions:
        keep = keep[scores[keep] >= scores[keep][rule.max_regions - 1]]
    keep = keep[classes[keep].sort(stable=True).indices]
    return rows[keep], classes[keep], scores[keep]


FILTERS = {0: filter_pairs, 1: filter_classes, 2: filter_once}
