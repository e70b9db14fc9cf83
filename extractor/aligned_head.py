"""The region head that detectron2 and maskrcnn-benchmark put on a C4 map: RoIAlign, then res5 with a stride of 2."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from .backbone import Backbone, Norm, make_stage
from .configs import C4Config


class AlignedHead(nn.Module):
    """RoIs of a res4 map to region features.

    Args:
        config: widths and the pooled size.
        groups: of the 3x3 convolutions.
        sampling_ratio, aligned: of torchvision's `roi_align`; a ratio of 0 adapts to the RoI.
    """

    def __init__(self, config: C4Config, groups: int, sampling_ratio: int, aligned: bool, norm: Norm):
        super().__init__()
        self.size, self.sampling_ratio, self.aligned = config.pooled_size, sampling_ratio, aligned
        inputs, outputs = config.channels[2:]
        self.res5 = make_stage(config.blocks[3], inputs, config.widths[3], outputs, norm, stride=2, groups=groups)

    def pooler(self, feature: Tensor, rois: Tensor) -> Callable[[slice], Tensor]:
        """Pools some of one image's rois f32[k,4], in resized pixels, from its map [1,C,h,w]: [n,C,s,s]."""
        feature = feature.float().contiguous()

        def pool(rows: slice) -> Tensor:
            scale = 1.0 / Backbone.stride
            return roi_align(feature, [rois[rows]], self.size, scale, self.sampling_ratio, self.aligned)

        return pool

    def features(self, pooled: Tensor) -> Tensor:
        """[k,C,s,s] to region features f32[k,d]: the mean of res5, never negative."""
        pooled = pooled.to(self.res5[0].conv1.weight.dtype, memory_format=torch.channels_last)
        return self.res5(pooled).mean(dim=(2, 3), dtype=torch.float32)
