"""Box geometry in both conventions of the published detectors.

Boxes are (x1, y1, x2, y2); deltas are (dx, dy, dw, dh) as in Faster R-CNN (Ren et al. 2015, eq. 2). In detectron2's
convention corners are continuous and a box is x2 - x1 wide. In that of Caffe and maskrcnn-benchmark, here called
inclusive, corners are pixels that belong to the box, which is x2 - x1 + 1 wide.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_LOG_SCALE = math.log(1000 / 16)  # a regressed side grows at most this much, or exp() overflows


def grid_anchors(height: int, width: int, stride: int, sizes, ratios, device=None) -> Tensor:
    """Anchors of a feature map: f32[height*width*A,4] in (row, column, size, ratio) order.

    Centred on each cell's top-left corner, as detectron2 places them with offset 0; ratio is height / width.
    """
    widths = [(math.sqrt(size * size / ratio), ratio) for size in sizes for ratio in ratios]
    cells = [(-w / 2, -ratio * w / 2, w / 2, ratio * w / 2) for w, ratio in widths]
    return on_grid(cells, height, width, stride, device)


def encode_deltas(boxes: Tensor, targets: Tensor, weights=(1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Deltas [n,4] that take `boxes` [n,4] to `targets` [n,4]; boxes must have a positive area."""
    wx, wy, ww, wh = weights
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    target_width, target_height = targets[:, 2] - targets[:, 0], targets[:, 3] - targets[:, 1]
    dx = wx * (targets[:, 0] + 0.5 * target_width - boxes[:, 0] - 0.5 * width) / width
    dy = wy * (targets[:, 1] + 0.5 * target_height - boxes[:, 1] - 0.5 * height) / height
    return torch.stack((dx, dy, ww * torch.log(target_width / width), wh * torch.log(target_height / height)), dim=1)


def decode_deltas(boxes: Tensor, deltas: Tensor, weights=(1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Boxes [n,4] after moving `boxes` [n,4] by `deltas` [n,4]; not clipped."""
    wx, wy, ww, wh = weights
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    centre_x = deltas[:, 0] / wx * width + (boxes[:, 0] + 0.5 * width)  # in the order of the published systems
    centre_y = deltas[:, 1] / wy * height + (boxes[:, 1] + 0.5 * height)
    half_width = 0.5 * torch.exp((deltas[:, 2] / ww).clamp(max=MAX_LOG_SCALE)) * width
    half_height = 0.5 * torch.exp((deltas[:, 3] / wh).clamp(max=MAX_LOG_SCALE)) * height
    return torch.stack(
        (centre_x - half_width, centre_y - half_height, centre_x + half_width, centre_y + half_height), dim=1
    )


def clip_boxes(boxes: Tensor, height: float, width: float) -> Tensor:
    """Boxes [n,4] with corners moved into [0, width] x [0, height]."""
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    return torch.stack((x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)), dim=1)


def has_area(boxes: Tensor) -> Tensor:
    """bool[n]: positive width and height."""
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """IoU [..., a, b] of boxes [..., a, 4] and others [..., b, 4], in the arithmetic of torchvision's nms."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    other_area = (others[..., 2] - others[..., 0]) * (others[..., 3] - others[..., 1])
    boxes, others = boxes.unsqueeze(-2), others.unsqueeze(-3)
    width = (torch.minimum(boxes[..., 2], others[..., 2]) - torch.maximum(boxes[..., 0], others[..., 0])).clamp(min=0)
    height = (torch.minimum(boxes[..., 3], others[..., 3]) - torch.maximum(boxes[..., 1], others[..., 1])).clamp(min=0)
    shared = width * height
    return shared / (area.unsqueeze(-1) + other_area.unsqueeze(-2) - shared)


def inclusive_anchors(height: int, width: int, stride: int, sizes, ratios, device=None) -> Tensor:
    """Inclusive anchors of a map: f32[height*width*R*S,4] in (row, column, ratio, size) order."""
    return on_grid(inclusive_cells(stride, sizes, ratios), height, width, stride, device)


def inclusive_cells(stride: int, sizes, ratios) -> list[tuple[float, float, float, float]]:
    """Inclusive anchors of a map's first cell in (ratio, size) order.

    Caffe's, and the original Detectron's: the sides of a stride x stride window, rounded per ratio (height / width),
    then scaled to each size; all centred on the window.
    """
    centre, cells = (stride - 1) / 2, []
    for ratio in ratios:
        base = round(math.sqrt(stride * stride / ratio))
        for size in sizes:
            half_width = (base * size / stride - 1) / 2
            half_height = (round(base * ratio) * size / stride - 1) / 2
            cells.append((centre - half_width, centre - half_height, centre + half_width, centre + half_height))
    return cells


def on_grid(cells, height: int, width: int, stride: int, device=None) -> Tensor:
    """The boxes `cells` of every cell of a map: f32[height*width*len(cells),4]."""
    x = torch.arange(0, width * stride, stride, dtype=torch.float32, device=device)
    y = torch.arange(0, height * stride, stride, dtype=torch.float32, device=device)
    y, x = torch.meshgrid(y, x, indexing="ij")
    shifts = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
    return (shifts + torch.tensor(cells, dtype=torch.float32, device=device)).reshape(-1, 4)


def exclusive(boxes: Tensor) -> Tensor:
    """Inclusive boxes with the corner just outside them in place of the last pixel, so that the usual IoU applies."""
    return boxes + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])


def decode_inclusive(boxes: Tensor, deltas: Tensor) -> Tensor:
    """Inclusive boxes [n,4] after moving inclusive `boxes` [n,4] by `deltas` [n,4]; not clipped."""
    return decode_deltas(exclusive(boxes), deltas) - boxes.new_tensor([0.0, 0.0, 1.0, 1.0])
