"""Presets that run on detectron2: any configuration by name, and the recipe of VSR."""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qsl

from cache import UsageError

from .configs import DetectionNMS, DetectronConfig, MaxClassNMS, PerClassNMS, Preprocess
from .preset import Preset

FAMILY = "detectron2"
SELECTIONS = ("detections", "max-class", "per-class")
OPTIONS = ("layer", "activation", "select", "nms", "score", "min", "max")

VSR_VISUALBERT = Preset(
    name="vsr-visualbert",
    revision=1,
    summary="VSR's features for VisualBERT: detectron2's COCO Mask R-CNN R101-FPN, fc2 before its ReLU, 10-100 regions",
    architecture=DetectronConfig(
        config="COCO-InstanceSegmentation/mask_rcnn_R_101_FPN_3x.yaml",
        dim=1024,
        num_classes=80,
        layer="fc2",
        activation="pre",
        shifted_scores=True,
        roi_chunk=250,
    ),
    preprocess=Preprocess(mean=(103.53, 116.28, 123.675)),
    selection=PerClassNMS(threshold=0.5, min_score=0.5, class_boxes=True),
    weights="coco_mask_rcnn_r101_fpn.safetensors",
    class_file="coco_classes.txt",
    attribute_file="",
    training_data="COCO",
    urls=(
        "https://dl.fbaipublicfiles.com/detectron2/COCO-InstanceSegmentation/mask_rcnn_R_101_FPN_3x/138205316/"
        "model_final_a3ec72.pkl",
    ),
)


def detectron_preset(name: str) -> Preset:
    """The preset for "detectron2:CONFIG.yaml?option=value&...", with the options

    * layer: pooled, fc1, fc2, ...; default the last of the box head, pooled where it has none;
    * activation: post or pre, for the fc layers;
    * select: detections (the model's own output), max-class or per-class (the best regions, see configs.py);
    * nms, score, min, max: IoU threshold, least score, least and greatest number of regions.

    The model's classes are numbers, unless it is of COCO's 80.

    Raises:
        UsageError: an unknown option or value, or detectron2 is not installed.
        InputNotFound: there is no such configuration.
    """
    from .detectron import read_config

    path, _, query = name.removeprefix(f"{FAMILY}:").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := options.keys() - set(OPTIONS):
        raise UsageError(f"{name}: there is no option {', '.join(sorted(unknown))}; there are {', '.join(OPTIONS)}")
    config = read_config(path)
    head, pyramid = config.MODEL.ROI_BOX_HEAD, "FPN" in config.MODEL.BACKBONE.NAME.upper()
    layers = (*(f"fc{n}" for n in range(head.NUM_FC if pyramid else 0, 0, -1)), "pooled")
    layer = _choice(options, "layer", layers)
    if layer == "pooled" and "activation" in options:
        raise UsageError("--model detectron2: activation is for layers such as fc1; pooled maps have none")
    if layer != "pooled":
        dim = head.FC_DIM
    elif pyramid:
        dim = config.MODEL.FPN.OUT_CHANNELS
    else:
        dim = config.MODEL.RESNETS.RES2_OUT_CHANNELS * 8
    classes = config.MODEL.ROI_HEADS.NUM_CLASSES
    return Preset(
        name=name,
        revision=1,
        summary=f"detectron2 model {path}",
        architecture=DetectronConfig(
            config=path,
            dim=dim,
            num_classes=classes,
            layer=layer,
            activation=_choice(options, "activation", ("post", "pre")),
            config_sha256=hashlib.sha256(config.dump().encode()).hexdigest(),
        ),
        preprocess=Preprocess(
            short_side=config.INPUT.MIN_SIZE_TEST,
            long_side=config.INPUT.MAX_SIZE_TEST,
            mean=tuple(config.MODEL.PIXEL_MEAN),
            std=tuple(config.MODEL.PIXEL_STD),
            channels=config.INPUT.FORMAT.lower(),
        ),
        selection=_selection(options, config),
        weights=config.MODEL.WEIGHTS or "weights",
        class_file="coco_classes.txt" if classes == 80 else "",
        attribute_file="",
        training_data=", ".join(config.DATASETS.TRAIN) or "unknown",
    )


def _choice(options: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"--model detectron2: {name}={value!r} is not one of {', '.join(choices)}")
    return value


def _selection(options: dict[str, str], config) -> DetectionNMS | MaxClassNMS | PerClassNMS:
    def number(name: str, default: float, kind: type = float):
        try:
            return kind(options.get(name, default))
        except ValueError as error:
            what = "a whole number" if kind is int else "a number"
            raise UsageError(f"--model detectron2: {name}={options[name]!r} is not {what}") from error

    heads = config.MODEL.ROI_HEADS
    threshold, score = number("nms", heads.NMS_THRESH_TEST), number("score", heads.SCORE_THRESH_TEST)
    least, most = number("min", 0, int), number("max", config.TEST.DETECTIONS_PER_IMAGE, int)
    if not 0 <= least <= most or most < 1:
        raise UsageError(f"--model detectron2: min={least} and max={most} do not fit together; give 0 <= min <= max")
    kind = _choice(options, "select", SELECTIONS)
    if kind == "detections":
        if least:
            raise UsageError(
                "--model detectron2: min is for select=max-class and per-class; detections are what the model says"
            )
        return DetectionNMS(threshold, score, 0, most)
    if kind == "max-class":
        return MaxClassNMS(most, (threshold,), score, least)
    return PerClassNMS(threshold, score, least, most, class_boxes=True)
