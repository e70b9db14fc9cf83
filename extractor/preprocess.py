"""From a decoded image to a network's input, by the rules of the published systems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .configs import Preprocess
from .resize import opencv_scale, resize_opencv, resize_pillow, short_side_size


@dataclass(frozen=True)
class Frame:
    """How an image of width x height pixels lies in the network's input of `size` (height, width) pixels.

    A point (x, y) of the image is (x * scale[0] - origin[0], y * scale[1] - origin[1]) there: `origin` is what was cut
    off on the left and on top.
    """

    width: int
    height: int
    size: tuple[int, int]
    scale: tuple[float, float]
    origin: tuple[float, float] = (0.0, 0.0)

    @property
    def to_resized(self) -> np.ndarray:
        """f32[4] to multiply boxes of the image with, before what is cut off is subtracted."""
        return np.array(self.scale * 2, dtype=np.float32)

    def resized(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes f32[k,4] of the image in pixels of the input."""
        return boxes * self.to_resized - np.array(self.origin * 2, dtype=np.float32)

    @property
    def to_original(self) -> np.ndarray:
        """f32[4] to multiply boxes of the input with, once what was cut off is added."""
        return np.array([1 / s for s in self.scale * 2], dtype=np.float32)


@singledispatch
def frame(rule: Any, height: int, width: int) -> Frame:
    """The frame of an image of that size. A new kind of rule registers its own with `frame.register`."""
    raise TypeError(f"there is no frame for a {type(rule).__name__}")


@singledispatch
def network_input(rule: Any, rgb: np.ndarray, to: Frame) -> Tensor:
    """f32[3,h,w] for an RGB uint8 [H,W,3] image; `network_input.register` as for `frame`."""
    raise TypeError(f"there is no input for a {type(rule).__name__}")


@frame.register
def _(rule: Preprocess, height: int, width: int) -> Frame:
    if rule.resize.startswith("opencv"):
        scale = opencv_scale(height, width, rule.short_side, rule.long_side)
        new_height, new_width = (max(1, int(np.round(side * scale))) for side in (height, width))
        return Frame(width, height, (new_height, new_width), (scale, scale))
    new_height, new_width = short_side_size(height, width, rule.short_side, rule.long_side)
    return Frame(width, height, (new_height, new_width), (new_width / width, new_height / height))


@network_input.register
def _(rule: Preprocess, rgb: np.ndarray, to: Frame) -> Tensor:
    pixels = ordered(rule, rgb)
    if rule.resize == "pillow":
        resized = centred(rule, resize_pillow(np.ascontiguousarray(pixels), to.size).astype(np.float32))
    elif rule.resize == "opencv":
        resized = resize_opencv(centred(rule, pixels.astype(np.float64)), to.scale[0])
    elif rule.resize == "torch":
        floats = torch.from_numpy(np.array(pixels.transpose(2, 0, 1), np.float32, order="C"))
        floats = F.interpolate(floats[None], to.size, mode="bilinear", align_corners=False)[0]
        resized = centred(rule, floats.numpy().transpose(1, 2, 0))
    else:
        raise TypeError(f"there is no input for a {type(rule).__name__} with the resize rule {rule.resize!r}")
    return planes(resized)


def ordered(rule: Preprocess, rgb: np.ndarray) -> np.ndarray:
    """RGB [H,W,3] in the order of channels of the rule."""
    return rgb if rule.channels == "rgb" else rgb[:, :, ::-1]


def centred(rule: Preprocess, pixels: np.ndarray) -> np.ndarray:
    """f32: mean subtracted in the precision of `pixels`, then divided by the deviation."""
    less = (pixels - np.array(rule.mean, dtype=pixels.dtype)).astype(np.float32)
    return less if rule.std == (1.0, 1.0, 1.0) else less / np.array(rule.std, dtype=np.float32)


def planes(pixels: np.ndarray) -> Tensor:
    """f32[H,W,3] as f32[3,H,W]."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
