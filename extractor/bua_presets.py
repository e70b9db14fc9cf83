"""The detectors of MILVLG's bottom-up-attention.pytorch, in its Caffe mode and its detectron2 mode. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from .configs import C4Config, DetectionNMS, PerClassNMS, Preprocess
from .preset import Preset

_SHARED_FOLDER = "https://awma1-my.sharepoint.com/:u:/g/personal/yuz_l0_tn/"


@dataclass(frozen=True)
class BuaCaffeConfig(C4Config):
    """The original ResNet-101 of bottom-up attention (Anderson et al. 2018), converted from Caffe."""

    network: ClassVar[str] = "extractor.bua_caffe:BuaCaffeDetector"


@dataclass(frozen=True)
class CaffeNMS(PerClassNMS):
    """`PerClassNMS` as Caffe counts: inclusive boxes in the original image, where an equal overlap suppresses too.

    Regions come best first only if there were too few or too many of them; else in the order of the proposals.
    """

    threshold: float = 0.3
    pixel_inclusive: bool = True
    clip: bool = False


@dataclass(frozen=True)
class BuaD2Config(C4Config):
    """The detectron2 mode: RoIAlign, a strided res5, a thousand proposals, attributes without a "none".

    Attributes:
        groups: of the 3x3 convolutions.
    """

    network: ClassVar[str] = "extractor.bua_d2:BuaD2Detector"

    rpn_channels: int = 1024
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    proposals: int = 1000
    groups: int = 1


@dataclass(frozen=True)
class ResizedDetectionNMS(DetectionNMS):
    """`DetectionNMS` whose boxes are clipped to the resized image: they may end a fraction of a pixel later."""


@dataclass(frozen=True)
class RawPreprocess(Preprocess):
    """The float image is interpolated by OpenCV, one scale for both axes, before the mean is subtracted."""

    resize: str = "opencv-raw"


BUA_R101_36 = Preset(
    name="bua-r101-36",
    revision=1,
    summary="the original bottom-up attention, converted from Caffe: ResNet-101, 36 regions, images at 600/1000",
    architecture=BuaCaffeConfig(),
    preprocess=Preprocess(short_side=600, long_side=1000, resize="opencv"),
    selection=CaffeNMS(min_regions=36, max_regions=36),
    weights="bua_caffe_r101_36.safetensors",
    class_file="vg_classes.txt",
    attribute_file="vg_attributes.txt",
    training_data="Visual Genome",
    urls=(f"{_SHARED_FOLDER}EUKhQ3hSRv9JrrW64qpNLSIBGoOjEGCkF8zvgBP9gKax-w?download=1",),
)

BUA_R101_10_100 = replace(
    BUA_R101_36,
    name="bua-r101-10-100",
    summary="the same with its other weights: 10-100 regions by confidence",
    selection=CaffeNMS(),
    weights="bua_caffe_r101_10_100.safetensors",
    urls=(
        f"{_SHARED_FOLDER}EaXvCC3WjtlLvvEfLr3oa8UBLA21tcLh4L8YLbYXl6jgjg?download=1",
        "https://vln-r2r.s3.amazonaws.com/bua-caffe-frcn-r101_with_attributes.pth",
    ),
)

BUA_D2_R101 = replace(
    BUA_R101_36,
    name="bua-d2-r101",
    summary="MILVLG's retraining with detectron2: ResNet-101, up to 100 detections, a region once for each class",
    architecture=BuaD2Config(),
    preprocess=RawPreprocess(600, 1000, mean=(103.53, 116.28, 123.675)),
    selection=ResizedDetectionNMS(),
    weights="bua_d2_r101.safetensors",
    urls=(f"{_SHARED_FOLDER}EXXItFlOpHlNq81O1H_cPyoBXUPyXoHmIwPEudnTWKX4rQ?download=1",),
)

BUA_D2_X152 = replace(
    BUA_D2_R101,
    name="bua-d2-x152",
    summary="the same with a ResNeXt-152 32x8d",
    architecture=BuaD2Config(widths=(256, 512, 1024, 2048), blocks=(3, 8, 36, 3), groups=32, pooled_size=7),
    weights="bua_d2_x152.safetensors",
    urls=(f"{_SHARED_FOLDER}EdLhYc39P8tBkEDVCDOrNV4BgPhz9M4iBq8oPw1iyVSlmg?download=1",),
)

PRESETS = (BUA_R101_36, BUA_R101_10_100, BUA_D2_R101, BUA_D2_X152)
