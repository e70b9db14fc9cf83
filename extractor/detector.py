"""The C4 Faster R-CNN with attributes (Anderson et al. 2018, bottom-up attention): resized images in, regions out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbone import MIN_SIDE, Backbone, FrozenBatchNorm2d, Norm
from .boxes import clip_boxes, decode_deltas
from .configs import C4Config
from .detections import Detections
from .roi_heads import BOX_WEIGHTS, RoIHeads
from .rpn import ProposalNetwork


class Detector(nn.Module):
    """Backbone, proposal network and region head under detectron2's tensor names."""

    reduced = ("backbone", "proposal_generator.rpn_head.conv", "roi_heads.res5")
    small_maps = ("roi_heads.res5",)

    def __init__(self, config: C4Config, norm: Norm = FrozenBatchNorm2d):
        super().__init__()
        self.config = config
        self.backbone = Backbone(config, norm)
        self.proposal_generator = ProposalNetwork(config)
        self.roi_heads = RoIHeads(config, norm)

    @torch.inference_mode()
    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; see `networks.Network.detect`."""
        feature, size = self.map(images)
        if rois is None:
            rois = self.propose(feature, size)
        yield from self.describe_all(feature, rois, size, chunk)

    def map(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Feature maps [B,C,h,w] of a batch, and the (height, width) of its images, which boxes are clipped to."""
        height, width = images.shape[2:]
        # a sliver is filled up with the mean to the least that the backbone can take
        images = F.pad(images, (0, max(0, MIN_SIDE - width), 0, max(0, MIN_SIDE - height)))
        weight = next(self.backbone.parameters())
        return self.backbone(images.to(weight.dtype)), (height, width)

    def propose(self, feature: Tensor, *arguments) -> list[Tensor]:
        """Proposals f32[p,4] of each image of a batch; what follows the maps goes to the proposal network."""
        maps = zip(*self.proposal_generator.rpn_head(feature), strict=True)
        return [self.proposal_generator.propose(*one, *arguments)[0] for one in maps]

    def describe_all(
        self, feature: Tensor, rois: list[Tensor], size: tuple[int, int], chunk: int | None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch from its map and its rois; None where the map is not finite."""
        finite = torch.isfinite(feature).flatten(1).all(dim=1).tolist()
        for index, boxes in enumerate(rois):
            yield self.describe(feature[index : index + 1], boxes, size, chunk) if finite[index] else None

    def describe(self, feature: Tensor, rois: Tensor, size: tuple[int, int], chunk: int | None = None) -> Detections:
        """Detections of one image's rois [k,4] from its map [1,C,h,w].

        The head always runs on whole chunks, filled up with empty RoIs: a matrix product over fewer rows may differ in
        the last bits, and a record must not depend on how many proposals happened to be in its chunk.
        """
        chunk = chunk or self.config.roi_chunk
        whole = F.pad(rois, (0, 0, 0, -len(rois) % chunk if len(rois) else chunk))
        pooler = self.roi_heads.pooler(feature, whole)
        parts = []
        for start in range(0, len(whole), chunk):
            rows = slice(start, start + chunk)
            parts.append(self.predict(whole[rows], self.roi_heads.features(pooler(rows)), size))
        return Detections.cat(parts)[: len(rois)]

    def predict(self, rois: Tensor, features: Tensor, size: tuple[int, int]) -> Detections:
        """Detections of rois f32[k,4] from their region features [k,d], in an image of `size` (height, width)."""
        predictor = self.roi_heads.box_predictor
        class_logits, deltas = predictor(features)
        attr_logits = predictor.attribute_logits(features, class_logits.argmax(dim=1))
        class_scores = class_logits.softmax(dim=1)[:, :-1]
        class_probs, class_ids = class_scores.max(dim=1)
        attr_probs, attr_ids = attr_logits[:, :-1].softmax(dim=1).max(dim=1)
        rows = torch.arange(len(rois), device=rois.device)
        chosen = deltas.reshape(len(rois), -1, 4)[rows, class_ids]
        boxes = clip_boxes(decode_deltas(rois, chosen, BOX_WEIGHTS), *size)
        return Detections(rois, boxes, features, class_ids, class_probs, class_scores, attr_ids, attr_probs)
