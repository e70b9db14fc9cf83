"""What a network says about the RoIs of one image."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Detections:
    """k RoIs of one image, boxes in pixels of the resized image.

    rois f32[k,4] were pooled; boxes f32[k,4] are the rois regressed by their best class and clipped, or the rois from
    a network that does not regress. features f32[k,d]. class_ids i64[k] and class_probs f32[k]: best foreground class
    of a softmax that includes the background; class_scores f32[k,C] has all foreground classes. attr_ids i64[k] and
    attr_probs f32[k]: best attribute, from a network that has attributes. class_boxes f32[k,C,4]: the rois regressed
    by every class, from a network whose selection needs them. embedding f32[g] is of the whole image, whatever rows
    are taken; class_ids and class_probs are None from a network without classes.
    """

    rois: Tensor
    boxes: Tensor
    features: Tensor
    class_ids: Tensor | None = None
    class_probs: Tensor | None = None
    class_scores: Tensor | None = None
    attr_ids: Tensor | None = None
    attr_probs: Tensor | None = None
    class_boxes: Tensor | None = None
    embedding: Tensor | None = None

    def __getitem__(self, rows: Tensor | slice) -> Detections:
        return Detections(*(None if v is None else v[rows] for v in self._rows()), embedding=self.embedding)

    def cpu(self) -> Detections:
        """The same in the CPU's memory, without what only the selection needs."""
        kept = replace(self, class_scores=None, class_boxes=None)
        return Detections(*(None if v is None else v.cpu() for v in (*kept._rows(), kept.embedding)))

    def __len__(self) -> int:
        return len(self.rois)

    def _rows(self) -> list[Tensor | None]:
        """All but the embedding, which is the last field."""
        return [getattr(self, f.name) for f in fields(self)[:-1]]

    @staticmethod
    def cat(parts: list[Detections]) -> Detections:
        """All rows of all parts, in order."""
        columns = zip(*(part._rows() for part in parts), strict=True)
        rows = (None if column[0] is None else torch.cat(column) for column in columns)
        return Detections(*rows, embedding=parts[0].embedding)
