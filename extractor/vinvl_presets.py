"""The object and attribute detector of VinVL (Zhang et al. 2021), whose features OSCAR+ reads. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from .configs import C4Config, Preprocess
from .preset import Preset


@dataclass(frozen=True)
class VinVLConfig(C4Config):
    """ResNeXt-152 32x8d on one stride-16 map, RoIAlign, a strided last stage; maskrcnn-benchmark's conventions.

    Attributes:
        groups: of the 3x3 convolutions.
    """

    network: ClassVar[str] = "extractor.vinvl:VinVLDetector"

    widths: tuple[int, int, int, int] = (256, 512, 1024, 2048)
    blocks: tuple[int, int, int, int] = (3, 8, 36, 3)
    groups: int = 32
    rpn_channels: int = 1024
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    num_classes: int = 1594
    num_attributes: int = 524


@dataclass(frozen=True)
class VinVLFilter:
    """One of the three selections of VinVL's code (its NMS_FILTER), over proposals that are not regressed.

    Attributes:
        kind: 1 suppresses in every class by itself and ranks a region by the class in which it survives best; 2
            suppresses once, by the most probable class; 0 takes (region, class) pairs above `min_score` that survive
            in their class, in the order of the classes, so that a region may come several times.
        threshold: IoU above which the weaker region is suppressed.
        min_score: kinds 1 and 2 keep the regions with it, but at least `min_regions` and at most `max_regions`; kind 0
            halves it up to ten times while there are fewer than `min_regions`.
    """

    kind: int = 1
    threshold: float = 0.3
    min_score: float = 0.2
    min_regions: int = 10
    max_regions: int = 100


@dataclass(frozen=True)
class TruncatedPreprocess(Preprocess):
    """The uint8 image is filtered by Pillow to a long side that is rounded down (scene_graph_benchmark)."""

    resize: str = "pillow-truncated"


VINVL_X152 = Preset(
    name="vinvl-x152",
    revision=1,
    summary="VinVL, whose features OSCAR+ reads: ResNeXt-152 C4, 10-100 regions of 1594 classes, images at 600/1000",
    architecture=VinVLConfig(),
    preprocess=TruncatedPreprocess(600, 1000, mean=(103.53, 116.28, 123.675)),
    selection=VinVLFilter(),
    weights="vinvl_x152.safetensors",
    class_file="vinvl_classes.txt",
    attribute_file="vinvl_attributes.txt",
    training_data="COCO, Open Images, Objects365 and Visual Genome, then Visual Genome",
    urls=("https://penzhanwu2.blob.core.windows.net/sgg/sgg_benchmark/vinvl_model_zoo/vinvl_vg_x152c4.pth",),
)

VINVL_X152_FILTER2 = replace(
    VINVL_X152,
    name="vinvl-x152-filter2",
    summary="vinvl-x152 with one suppression for all classes, the faster selection of its code",
    selection=VinVLFilter(2, 0.5),
)

VINVL_X152_FILTER0 = replace(
    VINVL_X152,
    name="vinvl-x152-filter0",
    summary="vinvl-x152 with the selection that its code defaults to: a region once for each class, unsorted",
    selection=VinVLFilter(0, 0.5),
)

PRESETS = (VINVL_X152, VINVL_X152_FILTER2, VINVL_X152_FILTER0)
