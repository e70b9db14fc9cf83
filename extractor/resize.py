"""The two resize rules that published detectors were trained and run with, reproduced to the bit.

`short_side_size` with `resize_pillow` is detectron2's: uint8 in and out, Pillow's antialiased bilinear filter.
`opencv_scale` with `resize_opencv` is that of Caffe's Faster R-CNN, maskrcnn-benchmark and mmf: float32 with the mean
already subtracted, OpenCV's bilinear interpolation without antialiasing, one scale for both axes.

Both keep the aspect ratio, bring the short side to `short`, and shrink again when the long side exceeds `longest`.
Neither ever returns a side of 0 pixels.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from PIL import Image


def short_side_size(height: int, width: int, short: int, longest: int) -> tuple[int, int]:
    """Target size (height, width), each rounded half up, of detectron2's ResizeShortestEdge.

    480x640 with 800 and 1333 gives 800x1067.
    """
    scale = short / min(height, width)
    new_height, new_width = (short, scale * width) if height < width else (scale * height, short)
    if max(new_height, new_width) > longest:
        scale = longest / max(new_height, new_width)
        new_height, new_width = new_height * scale, new_width * scale
    return max(int(new_height + 0.5), 1), max(int(new_width + 0.5), 1)


def resize_pillow(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize uint8 [H,W,3] to `size` (height, width) with Pillow's BILINEAR, in any channel order."""
    height, width = size
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def opencv_scale(height: int, width: int, short: int, longest: int) -> float:
    """The scale of Caffe's Faster R-CNN: short / short side, or longest / long side when the long side would exceed it.

    The long side is rounded half to even before it is compared, so 1333.4 passes a limit of 1333.
    """
    scale = short / min(height, width)
    if np.round(scale * max(height, width)) > longest:
        scale = longest / max(height, width)
    return scale


def resize_opencv(image: np.ndarray, scale: float) -> np.ndarray:
    """Resize float32 [H,W,3] by `scale` with OpenCV's INTER_LINEAR.

    The result has round-half-even(H * scale) x round-half-even(W * scale) pixels, and samples at exactly 1 / scale, not
    at the ratio of the sizes. Only when a side would round to 0 is it 1, sampled at the ratio of the sizes. To the bit
    on x86 with Intel's IPP, which OpenCV's wheels include; without it values differ by up to 1e-3 of 255.
    """
    cv2 = _opencv()
    height, width = (int(np.round(side * scale)) for side in image.shape[:2])
    if height == 0 or width == 0:
        return cv2.resize(image, (max(width, 1), max(height, 1)), interpolation=cv2.INTER_LINEAR)
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)


@cache
def _opencv() -> ModuleType:
    """OpenCV with one thread, set once per process.

    Its thread pool is process-wide, is as large as the machine, and does not survive a fork; photos are what runs in
    parallel here. The number of threads does not change the result. A program that wants the pool for its own use of
    OpenCV sets it again afterwards.
    """
    import cv2

    cv2.setNumThreads(1)
    return cv2
