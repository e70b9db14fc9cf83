"""The detectors there are. Light on purpose (no torch): listing them must be instant.

A new detector is one entry here plus, when it needs one, a module with its network; see docs/adding-an-extractor.md.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from cache import UsageError

from . import bua_presets, vinvl_presets
from .configs import C4Config, FPNConfig, MaxClassNMS, PerClassNMS, Preprocess
from .detectron_presets import FAMILY, VSR_VISUALBERT, detectron_preset
from .grid_presets import TRANSFORMERS, c5_grid, transformer_preset
from .preset import Preset
from .transformer_configs import KINDS

DEMO = Preset(
    name="demo",
    revision=1,
    summary="small C4 detector of drawn shapes with colour and texture attributes; ships with the package",
    architecture=C4Config(
        stem_channels=32,
        widths=(24, 48, 96, 96),
        channels=(64, 128, 256, 384),
        blocks=(2, 2, 3, 2),
        rpn_channels=128,
        anchor_sizes=(24, 48, 96, 160),
        pre_nms=1000,
        proposals=64,
        pooled_size=7,
        num_classes=12,
        num_attributes=12,
        class_embedding=32,
        attribute_hidden=128,
        roi_chunk=64,
    ),
    preprocess=Preprocess(short_side=256, long_side=427),
    selection=MaxClassNMS(max_regions=36, thresholds=(0.5,), min_score=0.05, min_regions=10),
    weights="demo.safetensors",
    class_file="demo_classes.txt",
    attribute_file="demo_attributes.txt",
    training_data="procedurally drawn scenes (extractor/scenes.py)",
)

VG_R101 = Preset(
    name="vg-r101",
    revision=1,
    summary="bottom-up attention as IGLUE ran it: ResNet-101 C4, the best 36 regions, images at 800/1333",
    architecture=C4Config(),
    preprocess=Preprocess(),
    selection=MaxClassNMS(),
    weights="vg_r101_36.safetensors",
    class_file="vg_classes.txt",
    attribute_file="vg_attributes.txt",
    training_data="Visual Genome",
    urls=(
        "http://nlp.cs.unc.edu/models/faster_rcnn_from_caffe_attr.pkl",
        "https://nlp1.cs.unc.edu/models/faster_rcnn_from_caffe_attr.pkl",
        "https://huggingface.co/unc-nlp/frcnn-vg-finetuned/resolve/main/pytorch_model.bin",
    ),
)

VG_R101_BUTD = replace(
    VG_R101,
    name="vg-r101-butd",
    summary="vg-r101 with images at 600/1000, as for the original features and those of LXMERT",
    preprocess=Preprocess(short_side=600, long_side=1000),
)

# Not the Caffe pipeline behind the published "k10-100" features: that one resizes by OpenCV, counts boxes inclusively,
# drops small proposals, and keeps the proposals' order where their number lies between the bounds.
VG_R101_ADAPTIVE = replace(
    VG_R101,
    name="vg-r101-adaptive",
    summary="vg-r101 with its other weights: 10-100 regions by confidence; Caffe's pipeline is bua-r101-10-100",
    selection=PerClassNMS(threshold=0.3),
    weights="vg_r101_10_100.safetensors",
    urls=(
        "http://nlp.cs.unc.edu/models/faster_rcnn_from_caffe_attr_original.pkl",
        "https://nlp1.cs.unc.edu/models/faster_rcnn_from_caffe_attr_original.pkl",
    ),
)

VG_X101 = Preset(
    name="vg-x101",
    revision=1,
    summary="the detector of Pythia, ViLBERT and M3P: ResNeXt-101 64x4d FPN, fc6, 10-100 regions by confidence",
    architecture=FPNConfig(),
    preprocess=Preprocess(resize="opencv"),
    selection=PerClassNMS(pixel_inclusive=True),
    weights="vg_x101.safetensors",
    class_file="vg_classes.txt",
    attribute_file="",
    training_data="Visual Genome",
    urls=(
        "https://dl.fbaipublicfiles.com/pythia/detectron_model/detectron_model.pth",
        "https://dl.fbaipublicfiles.com/vilbert-multi-task/detectron_model.pth",
    ),
)

VG_X101_IGLUE = replace(
    VG_X101,
    name="vg-x101-iglue",
    summary="vg-x101 exactly as IGLUE ran it: red and blue swapped, boxes into the padding, always 100 regions",
    architecture=FPNConfig(clip_to="padded"),
    preprocess=Preprocess(resize="opencv", channels="rgb"),
    selection=PerClassNMS(min_score=0.0, min_regions=100, pixel_inclusive=True, clip=False),
)

# The port takes the first of its NMS thresholds that keeps at least min_detections and at most max_detections regions.
# Its published configuration was not at hand. Assumed are the thresholds of vg-r101, and 36 for both bounds; code that
# uses the port often sets them to 10 and 100 itself.
FRCNN_VG_HF = replace(
    VG_R101,
    name="frcnn-vg-hf",
    summary="VSR's features for LXMERT: vg-r101 as the Hugging Face port runs it on files, red and blue swapped; "
    "its thresholds are assumed",
    preprocess=Preprocess(resize="torch", channels="rgb"),
    selection=MaxClassNMS(min_regions=36),
    urls=VG_R101.urls[::-1],
)

VG_R101_GRID = c5_grid(
    VG_R101,
    "vg-r101-grid",
    "the last map of vg-r101 as a grid, images at 600/1000: dilated res5 over the whole image, means of 2 x 2 cells",
    pool=2,
)

VG_X101_GRID = c5_grid(
    VG_X101, "vg-x101-grid", "the last map of vg-x101's ResNeXt as a grid, images at 600/1000; not its pyramid", pool=1
)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        DEMO,
        VG_R101,
        VG_R101_BUTD,
        VG_R101_ADAPTIVE,
        VG_X101,
        VG_X101_IGLUE,
        FRCNN_VG_HF,
        VG_R101_GRID,
        VG_X101_GRID,
        *TRANSFORMERS,
        VSR_VISUALBERT,
        *bua_presets.PRESETS,
        *vinvl_presets.PRESETS,
    )
}


# "FAMILY:REST" is a preset that is made from a configuration of the user's
FAMILIES = {FAMILY: detectron_preset, **dict.fromkeys(KINDS, transformer_preset)}


def list_extractors() -> list[str]:
    """Names that `load_extractor` takes, beside those of the families, such as "detectron2:CONFIG.yaml"."""
    return list(PRESETS)


def get_preset(name: str) -> Preset:
    """The preset of that name. Raises: UsageError, with the nearest names; else see the functions of `FAMILIES`."""
    family, colon, _ = name.partition(":")
    if colon and family in FAMILIES:
        return FAMILIES[family](name)
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4) or list(PRESETS)
        raise UsageError(f"there is no model {name!r}; did you mean {', '.join(near)}? `roivault models` lists them")
    return PRESETS[name]
