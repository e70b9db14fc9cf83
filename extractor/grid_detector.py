"""C5 grids: the last map of a detector's backbone, cell by cell, with the detector's own checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .backbone import Backbone
from .configs import C5GridConfig
from .detections import Detections
from .detector import Detector
from .fpn import MULTIPLE, STRIDES
from .fpn_detector import FPNDetector
from .grid import describe


class _C5Grid:
    """What both detectors do with their last map; `stride` is that of the map."""

    stride: int
    grid: C5GridConfig

    def c5(self, images: Tensor) -> Tensor:
        """The last map f32[B,C,h/stride,w/stride] of images f32[B,3,h,w]."""
        raise NotImplementedError

    @torch.inference_mode()
    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; see `networks.Network.detect`."""
        pool = self.grid.pool
        maps = self.c5(images).float()
        finite = torch.isfinite(maps).flatten(1).all(dim=1).tolist()
        maps = F.avg_pool2d(maps, pool, ceil_mode=True, count_include_pad=False)
        y, x = (
            edges(cells, side, self.stride * pool) for cells, side in zip(maps.shape[2:], images.shape[2:], strict=True)
        )
        for index, good in enumerate(finite):
            boxes = None if rois is None else rois[index]
            cells = maps[index].permute(1, 2, 0)
            yield describe(cells, y, x, boxes, chunk or self.grid.roi_chunk) if good else None


class C4Grid(_C5Grid, Detector):
    """res5 of a C4 detector over its whole res4 map: as dilated as over a RoI, hence with the stride of res4."""

    stride = Backbone.stride
    small_maps = ()  # the map is whole, and its cells are not averaged away

    def __init__(self, architecture: C5GridConfig):
        super().__init__(architecture.detector)
        self.grid = architecture

    def c5(self, images: Tensor) -> Tensor:
        feature, _ = self.map(images)
        res5, phases = self.roi_heads.res5, self.roi_heads.phases
        feature = feature.to(res5[0].conv1.weight.dtype)
        if phases == 1:
            return res5(feature)
        # its dilated convolutions became plain ones on every other cell, see `RoIHeads.fold`
        result = feature.new_empty(len(feature), self.grid.dim, *feature.shape[2:])
        for row in range(min(phases, feature.shape[2])):
            for column in range(min(phases, feature.shape[3])):
                part = feature[:, :, row::phases, column::phases].contiguous(memory_format=torch.channels_last)
                result[:, :, row::phases, column::phases] = res5(part)
        return result


class FPNGrid(_C5Grid, FPNDetector):
    """res5 of a pyramid's ResNeXt; the image is filled up with the mean colour, as for the detector."""

    stride = STRIDES[3]

    def __init__(self, architecture: C5GridConfig):
        super().__init__(architecture.detector)
        self.grid = architecture

    def c5(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        images = F.pad(images, (0, -width % MULTIPLE, 0, -height % MULTIPLE))
        return self.backbone.bottom_up(images.to(self.backbone.fpn_output2.weight.dtype))[-1]


def edges(cells: int, side: int, stride: int) -> np.ndarray:
    """i64[cells+1], where the cells of a map begin and end in an input of that side; the last ends with the input."""
    return np.append(np.arange(cells) * stride, side)
