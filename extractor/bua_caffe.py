"""Bottom-up attention as MILVLG's PyTorch port runs it in its Caffe mode: the network behind the original features.

Trunk and region head are those of `detector.Detector`. What differs is how Caffe counts: a box from x1 to x2 is
x2 - x1 + 1 wide, the background is the first class, objectness is a softmax over two channels, anchors come with the
checkpoint, and an equal overlap already suppresses.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.ops import nms

from .backbone import Backbone, FrozenBatchNorm2d, Norm
from .boxes import decode_deltas, exclusive, grid_anchors, has_area, inclusive_cells, on_grid
from .bua_presets import BuaCaffeConfig, CaffeNMS
from .detections import Detections
from .detector import Detector
from .preprocess import Frame
from .ranking import best_places, shared_boxes
from .rpn import RPNHead, by_anchor
from .selection import Selection, select, select_per_class

ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
SIZES_OF_CONFIG = (4, 8, 16, 32)  # pixels; of the anchors that detectron2 makes where it does not take the checkpoint's
MIN_SIDE = 16  # pixels of the original image that a proposal's sides have to exceed


class CaffeProposalNetwork(nn.Module):
    """RPN head with background and foreground channels, its anchors a tensor of the checkpoint."""

    def __init__(self, config: BuaCaffeConfig):
        super().__init__()
        self.config = config
        anchors = caffe_anchors(config)
        self.rpn_head = RPNHead(config.channels[2], config.rpn_channels, len(anchors))
        self.rpn_head.objectness_logits = nn.Conv2d(config.rpn_channels, 2 * len(anchors), 1)
        self.anchor_generator = nn.ModuleDict({"cell_anchors": nn.Module()})
        self.anchor_generator["cell_anchors"].register_buffer("0", anchors)

    @property
    def cells(self) -> Tensor:
        """Inclusive anchors of the first cell: f32[A,4]."""
        return self.anchor_generator["cell_anchors"].get_buffer("0")

    def propose(self, logits: Tensor, deltas: Tensor, size: tuple[int, int], scale: float) -> tuple[Tensor, Tensor]:
        """Proposals of one image.

        Args:
            logits: [2A,h,w], background channels before foreground ones, and deltas: [4A,h,w], of the head.
            size: (height, width) of the resized image in pixels; corners are clipped to its last ones.
            scale: of the resized image; proposals that are too small in the original are dropped.

        Returns:
            boxes f32[p,4], p at most config.proposals, best first, and their foreground probabilities f32[p].
        """
        objectness = logits.float().reshape(2, -1, *logits.shape[1:]).softmax(dim=0)[1]
        scores, deltas = by_anchor(objectness, deltas)
        anchors = on_grid(self.cells.tolist(), *logits.shape[1:], Backbone.stride, logits.device)
        boxes = decode_deltas(exclusive(anchors), deltas)
        limit = deltas.new_tensor([size[1], size[0], size[1], size[0]]) - 1
        boxes = torch.minimum(boxes.clamp(min=0), limit)
        sides = exclusive(boxes)[:, 2:] - boxes[:, :2]
        valid = has_area(boxes) & (sides > MIN_SIDE * scale).all(dim=1) & torch.isfinite(scores)
        boxes, scores = boxes[valid], scores[valid]
        if len(boxes):
            order = best_places(scores, self.config.pre_nms)[: self.config.pre_nms]
            boxes, scores = boxes[order], scores[order]
        keep = nms(exclusive(boxes), scores, just_below(self.config.proposal_nms))[: self.config.proposals]
        return boxes[keep], scores[keep]


def caffe_anchors(config: BuaCaffeConfig) -> Tensor:
    """f32[A,4], those that every checkpoint should have; with numbers even where a network without memory is made."""
    return torch.tensor(inclusive_cells(Backbone.stride, config.anchor_sizes, config.anchor_ratios), device="cpu")


class CaffePredictor(nn.Module):
    """Linear heads over region features [k,d]; the first class and the first attribute mean "none"."""

    def __init__(self, config: BuaCaffeConfig):
        super().__init__()
        self.cls_score = nn.Linear(config.dim, config.num_classes + 1)
        self.cls_embed = nn.Embedding(config.num_classes + 1, config.class_embedding)
        self.attr_linear1 = nn.Linear(config.dim + config.class_embedding, config.attribute_hidden)
        self.attr_linear2 = nn.Linear(config.attribute_hidden, config.num_attributes + 1)

    def attribute_logits(self, features: Tensor, class_ids: Tensor) -> Tensor:
        """[k,1+A] given each region's class id, 0 for the background."""
        hidden = self.attr_linear1(torch.cat((features, self.cls_embed(class_ids)), dim=1)).relu_()
        return self.attr_linear2(hidden)


class BuaCaffeDetector(Detector):
    """Backbone, proposal network and region head under the names of MILVLG's checkpoints.

    Regions keep their proposals' boxes, so the box regression in the file is not needed.
    """

    unused_tensors = r"roi_heads\.box_predictor\.bbox_pred\."
    needs_frames = True

    def __init__(self, config: BuaCaffeConfig, norm: Norm = FrozenBatchNorm2d):
        super().__init__(config, norm)
        self.proposal_generator = CaffeProposalNetwork(config)
        self.roi_heads.box_predictor = CaffePredictor(config)

    def default_tensors(self) -> dict[str, Tensor]:
        """Caffe's anchors, for a checkpoint without them."""
        return {ANCHORS: caffe_anchors(self.config)}

    def doubts(self, state: Mapping[str, Tensor]) -> str:
        """What is to be said of a checkpoint whose anchors are not Caffe's."""
        expected, found = caffe_anchors(self.config), state[ANCHORS]
        if torch.allclose(found, expected, atol=1.0):
            return ""
        sides = [(anchors[:, 2:] - anchors[:, :2]) for anchors in (found, expected)]
        return (
            f"its anchors, {ANCHORS}, have sides of {sides[0].min():.0f} to {sides[0].max():.0f} px where Caffe's have "
            f"{sides[1].min():.0f} to {sides[1].max():.0f}; its proposals will be others than the published ones"
        )

    def known_faults(self) -> dict[str, nn.Module]:
        """This network with the anchors that a current detectron2 gives it, whatever the checkpoint has."""
        generator = copy.deepcopy(self.proposal_generator)
        anchors = grid_anchors(1, 1, 1, SIZES_OF_CONFIG, self.config.anchor_ratios)
        generator.anchor_generator["cell_anchors"].register_buffer("0", anchors)
        faulty = copy.copy(self)
        faulty._modules = {**self._modules, "proposal_generator": generator}
        return {"the anchors of a current detectron2, of 4 to 32 pixels, instead of the checkpoint's": faulty}

    @torch.inference_mode()
    def detect(
        self,
        images: Tensor,
        rois: list[Tensor] | None = None,
        chunk: int | None = None,
        frames: Sequence[Frame] = (),
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; see `networks.Network.detect`."""
        feature, size = self.map(images)
        if rois is None:
            rois = [self.propose(feature[i : i + 1], size, frame.scale[0])[0] for i, frame in enumerate(frames)]
        yield from self.describe_all(feature, rois, size, chunk)

    def predict(self, rois: Tensor, features: Tensor, size: tuple[int, int]) -> Detections:
        """Detections of rois f32[k,4] from their region features [k,d]."""
        predictor = self.roi_heads.box_predictor
        logits = predictor.cls_score(features)
        class_scores = logits.softmax(dim=1)[:, 1:]
        class_probs, class_ids = class_scores.max(dim=1)
        attributes = predictor.attribute_logits(features, logits.argmax(dim=1)).softmax(dim=1)
        attr_probs, attr_ids = attributes[:, 1:].max(dim=1)
        return Detections(rois, rois, features, class_ids, class_probs, class_scores, attr_ids, attr_probs)


@select.register
def _(rule: CaffeNMS, found: Detections, frame: Frame) -> Selection:
    boxes = found.rois / frame.scale[0]
    overlaps = shared_boxes(exclusive(boxes), just_below(rule.threshold))
    rows, scores = select_caffe(overlaps, found.class_scores, rule)
    return Selection(rows, boxes[rows], scores)


def select_caffe(overlaps, class_scores: Tensor, rule: CaffeNMS) -> tuple[Tensor, Tensor]:
    """Rows to keep i64[n] and their ranks f32[n]; see `select_per_class`.

    Best first where there are fewer than rule.min_regions with rule.min_score, or more than rule.max_regions; between
    these bounds in the order of the proposals, as published.
    """
    rows, ranks = select_per_class(overlaps, class_scores, replace(rule, max_regions=rule.max_regions + 1))
    if rule.min_regions <= int((ranks >= rule.min_score).sum()) <= rule.max_regions:
        order = rows.argsort()
    else:
        order = slice(rule.max_regions)
    return rows[order], ranks[order]


def just_below(threshold: float) -> float:
    """The threshold that an IoU exceeds exactly when it is at least `threshold`, both as float32."""
    return float(np.nextafter(np.float32(threshold), np.float32(-1)))
