"""The ResNeXt-FPN Faster R-CNN of Pythia, ViLBERT and M3P (maskrcnn-benchmark): resized images in, regions out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from .backbone import Norm
from .boxes import exclusive
from .configs import FPNConfig
from .detections import Detections
from .fpn import FPN, MULTIPLE, STRIDES, NormWithoutEpsilon
from .rpn import PyramidProposalNetwork

CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # a RoI of that side is pooled from that level (Lin et al. 2017, eq. 1)
COARSEST_POOLED = 5


class BoxHead(nn.Module):
    """Two linear layers on flattened RoI maps [k,C,s,s]: fc6 and fc7, each [k,hidden] after its ReLU."""

    def __init__(self, config: FPNConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.pyramid_channels * config.pooled_size**2, config.hidden)
        self.fc2 = nn.Linear(config.hidden, config.hidden)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        fc6 = F.relu(self.fc1(pooled.flatten(1)))
        return fc6, F.relu(self.fc2(fc6))


class ClassPredictor(nn.Module):
    """Class logits [k,1+C]; the first class is the background."""

    def __init__(self, config: FPNConfig):
        super().__init__()
        self.cls_score = nn.Linear(config.hidden, config.num_classes + 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.cls_score(features)


class FPNDetector(nn.Module):
    """Pyramid, proposals and box head. Regions keep their proposals' boxes: the published features do."""

    # the box regression and the attribute head in the published file
    unused_tensors = r"roi_heads\.box_predictor\.(bbox_pred|cls_embed|attr_linear[12])\."
    reduced = ("backbone", "proposal_generator.rpn_head.conv", "roi_heads.box_head")
    stepwise = ("backbone.bottom_up",)
    planewise = ("backbone.bottom_up.res4", "backbone.bottom_up.res5")

    def __init__(self, config: FPNConfig, norm: Norm = NormWithoutEpsilon):
        super().__init__()
        self.config = config
        self.backbone = FPN(config, norm)
        self.proposal_generator = PyramidProposalNetwork(config)
        self.roi_heads = nn.ModuleDict({"box_head": BoxHead(config), "box_predictor": ClassPredictor(config)})

    @torch.inference_mode()
    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; see `networks.Network.detect`."""
        height, width = images.shape[2:]
        images = F.pad(images, (0, -width % MULTIPLE, 0, -height % MULTIPLE))  # 0 is the mean colour
        pyramid = self.backbone(images.to(self.backbone.fpn_output2.weight.dtype))
        if rois is None:
            size = (height, width) if self.config.clip_to == "image" else tuple(images.shape[2:])
            maps = [self.proposal_generator.rpn_head(level) for level in pyramid]
            rois = [
                self.proposal_generator.propose([m[0][i] for m in maps], [m[1][i] for m in maps], size)[0]
                for i in range(len(images))
            ]
        finite = torch.stack([torch.isfinite(level).flatten(1).all(dim=1) for level in pyramid]).all(dim=0).tolist()
        pyramid = [level.float() for level in pyramid[:-1]]
        for index, boxes in enumerate(rois):
            level = [level[index : index + 1] for level in pyramid]
            yield self.describe(level, boxes, chunk) if finite[index] else None

    def describe(self, pyramid: list[Tensor], rois: Tensor, chunk: int | None = None) -> Detections:
        """Detections of one image's inclusive rois f32[k,4] from its P2..P5, each [1,C,h,w].

        The linear layers always run on whole chunks, filled up with zeros, so that a RoI's result does not depend on
        how many there are.
        """
        chunk = chunk or self.config.roi_chunk
        pooled = self.pool(pyramid, rois)
        pooled = F.pad(pooled, (0, 0, 0, 0, 0, 0, 0, -len(rois) % chunk if len(rois) else chunk))
        parts = [self._head(part) for part in pooled.split(chunk)]
        features, scores = (torch.cat(column)[: len(rois)] for column in zip(*parts, strict=True))
        class_probs, class_ids = scores.max(dim=1)
        return Detections(rois, rois, features, class_ids, class_probs, scores)

    def _head(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Features f32[k,hidden] and foreground probabilities f32[k,C] of pooled maps [k,C,s,s]."""
        fc6, fc7 = self.roi_heads["box_head"](pooled.to(self.roi_heads["box_head"].fc1.weight.dtype))
        return fc6.float(), self.roi_heads["box_predictor"](fc7.float()).softmax(dim=1)[:, 1:]

    def pool(self, pyramid: list[Tensor], rois: Tensor) -> Tensor:
        """RoIAlign without the half-pixel shift: rois [k,4] to [k,C,s,s], each from the level that suits its size."""
        levels, size = roi_levels(rois), self.config.pooled_size
        pooled = rois.new_empty(len(rois), pyramid[0].shape[1], size, size)
        for number, (level, stride) in enumerate(zip(pyramid, STRIDES[: len(pyramid)], strict=True), 2):
            rows = torch.nonzero(levels == number).squeeze(1)
            pooled[rows] = roi_align(level, [rois[rows]], size, 1.0 / stride, sampling_ratio=2, aligned=False)
        return pooled


def roi_levels(rois: Tensor) -> Tensor:
    """Pyramid level i64[k], 2..5, that inclusive rois [k,4] are pooled from."""
    boxes = exclusive(rois)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    level = torch.floor(CANONICAL_LEVEL + torch.log2(area.sqrt() / CANONICAL_SIDE + 1e-6))
    return level.clamp(2, COARSEST_POOLED).long()
