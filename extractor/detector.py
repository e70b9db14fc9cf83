"""The C4 Faster R-CNN with attributes (Anderson et al. 2018, bottom-up attention): resized images in, regions out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from .backbone import Backbone, FrozenBatchNorm2d, Norm
from .boxes import clip_boxes, decode_deltas
from .presets import C4Config
from .roi_heads import BOX_WEIGHTS, RoIHeads
from .rpn import ProposalNetwork


@dataclass(frozen=True)
class Detections:
    """What the detector says about each of one image's k RoIs, in pixels of the resized image.

    rois f32[k,4] were pooled; boxes f32[k,4] are the rois regressed by their best class and clipped. class_ids i64[k]
    and class_probs f32[k]: best foreground class of a softmax that includes the background. attr_ids i64[k] and
    attr_probs f32[k]: best attribute of a softmax without the "none" logit, given the best class, background included.
    """

    rois: Tensor
    boxes: Tensor
    features: Tensor
    class_ids: Tensor
    class_probs: Tensor
    attr_ids: Tensor
    attr_probs: Tensor

    def __getitem__(self, rows: Tensor | slice) -> Detections:
        return Detections(*(getattr(self, f.name)[rows] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.rois)


class Detector(nn.Module):
    """Backbone, proposal network and region head under detectron2's tensor names."""

    def __init__(self, config: C4Config, norm: Norm = FrozenBatchNorm2d):
        super().__init__()
        self.config = config
        self.backbone = Backbone(config, norm)
        self.proposal_generator = ProposalNetwork(config)
        self.roi_heads = RoIHeads(config, norm)

    @torch.inference_mode()
    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections]:
        """Detections of each image of a batch, one after the other.

        Args:
            images: f32[B,3,h,w], preprocessed, all of one size, none padded.
            rois: boxes to describe instead of proposals, f32[k,4] per image in resized pixels.
            chunk: RoIs per pass of the region head; None means the configured number.
        """
        feature = self.backbone(images)
        size = (images.shape[2], images.shape[3])
        if rois is None:
            logits, deltas = self.proposal_generator.rpn_head(feature)
            rois = [self.proposal_generator.propose(*maps, size)[0] for maps in zip(logits, deltas, strict=True)]
        for index, boxes in enumerate(rois):
            yield self.describe(feature[index : index + 1], boxes, size, chunk)

    def describe(self, feature: Tensor, rois: Tensor, size: tuple[int, int], chunk: int | None = None) -> Detections:
        """Detections of one image's rois [k,4] from its map [1,C,h,w].

        The head always runs on whole chunks, filled up with empty RoIs: a matrix product over fewer rows may differ in
        the last bits, and a record must not depend on how many proposals happened to be in its chunk.
        """
        chunk = chunk or self.config.roi_chunk
        feature = feature.float()  # under autocast too: bfloat16 box corners would be off by pixels
        parts = [self._describe_chunk(feature, part, size, chunk) for part in rois.split(chunk)]
        if not parts:
            parts = [self._describe_chunk(feature, rois, size, chunk)]
        return Detections(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Detections)))

    def _describe_chunk(self, feature: Tensor, rois: Tensor, size: tuple[int, int], chunk: int) -> Detections:
        padded = rois.new_zeros(chunk, 5)  # column 0, the image's index in the batch, stays 0
        padded[: len(rois), 1:] = rois
        features = self.roi_heads.features(self.roi_heads.pool(feature, padded))
        return self.predict(padded[:, 1:], features, size)[: len(rois)]

    def predict(self, rois: Tensor, features: Tensor, size: tuple[int, int]) -> Detections:
        """Detections of rois f32[k,4] from their region features [k,d], in an image of `size` (height, width)."""
        predictor = self.roi_heads.box_predictor
        class_logits, deltas = predictor(features)
        attr_logits = predictor.attribute_logits(features, class_logits.argmax(dim=1))
        class_probs, class_ids = class_logits.float().softmax(dim=1)[:, :-1].max(dim=1)
        attr_probs, attr_ids = attr_logits.float()[:, :-1].softmax(dim=1).max(dim=1)
        rows = torch.arange(len(rois), device=rois.device)
        chosen = deltas.float().reshape(len(rois), -1, 4)[rows, class_ids]
        boxes = clip_boxes(decode_deltas(rois, chosen, BOX_WEIGHTS), *size)
        return Detections(rois, boxes, features.float(), class_ids, class_probs, attr_ids, attr_probs)
