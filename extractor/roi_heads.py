"""The region head: RoIPool, dilated res5, classes, boxes and attributes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_pool

from .backbone import Backbone, FrozenBatchNorm2d, Norm, make_stage
from .configs import C4Config
from .roi_pool import RoIPool

BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)


class BoxPredictor(nn.Module):
    """Linear heads over region features [k,d]; the last class and the last attribute mean "none"."""

    def __init__(self, config: C4Config):
        super().__init__()
        self.cls_score = nn.Linear(config.dim, config.num_classes + 1)
        self.bbox_pred = nn.Linear(config.dim, config.num_classes * 4)
        self.cls_embedding = nn.Embedding(config.num_classes + 1, config.class_embedding)
        self.fc_attr = nn.Linear(config.dim + config.class_embedding, config.attribute_hidden)
        self.attr_score = nn.Linear(config.attribute_hidden, config.num_attributes + 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits [k,C+1] and class-specific box deltas [k,4C]."""
        return self.cls_score(features), self.bbox_pred(features)

    def attribute_logits(self, features: Tensor, class_ids: Tensor) -> Tensor:
        """[k,A+1] given each region's class id in 0..C, where C is the background."""
        hidden = F.relu(self.fc_attr(torch.cat((features, self.cls_embedding(class_ids)), dim=1)))
        return self.attr_score(hidden)


class RoIHeads(nn.Module):
    """Region features and predictions from the res4 map."""

    def __init__(self, config: C4Config, norm: Norm = FrozenBatchNorm2d):
        super().__init__()
        self.pooled_size, self.phases = config.pooled_size, 1
        # Caffe kept the 14x14 resolution: no stride, every 3x3 convolution dilated instead
        self.res5 = make_stage(
            config.blocks[3], config.channels[2], config.widths[3], config.channels[3], norm, dilation=2
        )
        self.box_predictor = BoxPredictor(config)

    def fold(self) -> None:
        """Turn the dilation of 2 into four maps of every other bin, for good: the same sums, and faster ones."""
        if self.pooled_size % 2 == 0:
            self.phases = 2
            for block in self.res5:
                block.conv2.dilation = block.conv2.padding = (1, 1)

    def pool(self, feature: Tensor, rois: Tensor) -> Tensor:
        """Max RoIPool: map [B,C,h,w] and rois [k,5] (batch index, then a box in resized pixels) to [k,C,s,s]."""
        return roi_pool(feature, rois, self.pooled_size, 1.0 / Backbone.stride)

    def pooler(self, feature: Tensor, rois: Tensor) -> RoIPool:
        """The same for inference, for one image's map [1,C,h,w] and all its rois [k,4]."""
        return RoIPool(feature, rois, self.pooled_size, 1.0 / Backbone.stride, self.phases)

    def features(self, pooled: Tensor) -> Tensor:
        """[k,C,s,s] (or what `pooler` gives for k RoIs) to region features f32[k,d]: mean of res5, never negative."""
        x = self.res5(pooled.to(self.res5[0].conv1.weight.dtype)).permute(0, 2, 3, 1)
        return x.reshape(-1, self.pooled_size**2, x.shape[3]).mean(dim=1, dtype=torch.float32)
