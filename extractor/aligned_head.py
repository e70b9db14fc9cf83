"""The region head that detectron2 and maskrcnn-benchmark put on a C4 map: RoIAlign, then res5 with a stride of 2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .backbone import Backbone, Norm, make_stage
from .configs import C4Config
from .roi_align import RoIAlign


class AlignedHead(nn.Module):
    """RoIs of a res4 map to region features.

    Args:
        config: widths and the pooled size.
        groups: of the 3x3 convolutions.
        sampling_ratio, aligned: see `RoIAlign`.
    """

    def __init__(self, config: C4Config, groups: int, sampling_ratio: int, aligned: bool, norm: Norm):
        super().__init__()
        self.size, self.sampling_ratio, self.aligned = config.pooled_size, sampling_ratio, aligned
        # without groups the stride sits in 1x1 convolutions, which read every other bin only: the rest is not pooled
        self.step, stride = (2, 1) if groups == 1 else (1, 2)
        inputs, outputs = config.channels[2:]
        self.res5 = make_stage(config.blocks[3], inputs, config.widths[3], outputs, norm, stride, groups=groups)

    def pooler(self, feature: Tensor, rois: Tensor) -> RoIAlign:
        """Pools one image's rois f32[k,4], in resized pixels, from its map [1,C,h,w]."""
        return RoIAlign(feature, rois, self.size, 1 / Backbone.stride, self.sampling_ratio, self.aligned, self.step)

    def features(self, pooled: Tensor) -> Tensor:
        """What `pooler` gives for k RoIs to region features f32[k,d]: the mean of res5, never negative."""
        return self.res5(pooled.to(self.res5[0].conv1.weight.dtype)).mean(dim=(2, 3), dtype=torch.float32)
