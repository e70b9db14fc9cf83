"""Bottom-up attention as MILVLG trained it anew with detectron2: C4 detectors with RoIAlign and an attribute head."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .aligned_head import AlignedHead
from .backbone import Backbone, FrozenBatchNorm2d, Norm
from .boxes import clip_boxes, decode_deltas
from .bua_presets import BuaD2Config, RawPreprocess, ResizedDetectionNMS
from .detections import Detections
from .detector import Detector
from .preprocess import Frame, centred, network_input, ordered, planes
from .resize import resize_opencv
from .roi_heads import BOX_WEIGHTS
from .rpn import ProposalNetwork
from .selection import Selection, select, select_detections

SAMPLES = 2  # per side of a bin, in RoIAlign


class AttributePredictor(nn.Module):
    """Attribute logits [k,A] of region features [k,d] and class ids i64[k], whose last id is the background."""

    def __init__(self, config: BuaD2Config):
        super().__init__()
        self.obj_embed = nn.Embedding(config.num_classes + 1, config.class_embedding)
        self.fc = nn.Sequential(nn.Linear(config.dim + config.class_embedding, config.attribute_hidden))
        self.attr_score = nn.Linear(config.attribute_hidden, config.num_attributes)

    def forward(self, features: Tensor, class_ids: Tensor) -> Tensor:
        return self.attr_score(F.relu(self.fc(torch.cat((features, self.obj_embed(class_ids)), dim=1))))


class BuaD2Heads(AlignedHead):
    """The region head with the linear heads on its features."""

    def __init__(self, config: BuaD2Config, norm: Norm):
        super().__init__(config, config.groups, SAMPLES, aligned=True, norm=norm)
        cls_score = nn.Linear(config.dim, config.num_classes + 1)
        bbox_pred = nn.Linear(config.dim, config.num_classes * 4)
        self.box_predictor = nn.ModuleDict({"cls_score": cls_score, "bbox_pred": bbox_pred})
        self.attribute_predictor = AttributePredictor(config)


class BuaD2Detector(Detector):
    """Backbone, proposal network and region head under detectron2's tensor names."""

    def __init__(self, config: BuaD2Config, norm: Norm = FrozenBatchNorm2d):
        nn.Module.__init__(self)
        self.config = config
        self.backbone = Backbone(config, norm, config.groups, caffe_pool=False)
        self.proposal_generator = ProposalNetwork(config)
        self.roi_heads = BuaD2Heads(config, norm)

    def predict(self, rois: Tensor, features: Tensor, size: tuple[int, int]) -> Detections:
        """Detections of rois f32[k,4] from their region features [k,d], in an image of `size` (height, width)."""
        heads = self.roi_heads
        logits, deltas = (heads.box_predictor[name](features) for name in ("cls_score", "bbox_pred"))
        class_scores = logits.softmax(dim=1)[:, :-1]
        class_probs, class_ids = class_scores.max(dim=1)
        attributes = heads.attribute_predictor(features, logits.argmax(dim=1)).softmax(dim=1)
        attr_probs, attr_ids = attributes.max(dim=1)
        own = rois.repeat_interleave(self.config.num_classes, dim=0)
        boxes = clip_boxes(decode_deltas(own, deltas.reshape(-1, 4), BOX_WEIGHTS), *size).reshape(len(rois), -1, 4)
        rows = torch.arange(len(rois), device=rois.device)
        return Detections(
            rois=rois,
            boxes=boxes[rows, class_ids],
            features=features,
            class_ids=class_ids,
            class_probs=class_probs,
            class_scores=class_scores,
            attr_ids=attr_ids,
            attr_probs=attr_probs,
            class_boxes=boxes,
        )


@network_input.register
def _(rule: RawPreprocess, rgb: np.ndarray, to: Frame) -> Tensor:
    return planes(centred(rule, resize_opencv(ordered(rule, rgb).astype(np.float32), to.scale[0])))


@select.register
def _(rule: ResizedDetectionNMS, found: Detections, frame: Frame) -> Selection:
    rows, boxes, scores, classes = select_detections(found, rule)
    return Selection(rows, boxes / frame.scale[0], scores, classes)
