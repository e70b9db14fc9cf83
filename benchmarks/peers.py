"""Runs the published systems from their own trees, on a CPU and with a current torch, for benchmarks/extract.py.

* vg-r101: the folder `py-bottom-up-attention` (a detectron2 of 2019). It needs fvcore, iopath, yacs and what else
  detectron2 imports.
* vg-x101: the folder `mmf` of IGLUE's extraction scripts, with `github/vqa-maskrcnn-benchmark` in it. It needs yacs.
* bua-r101-36, bua-r101-10-100, bua-d2-r101, bua-d2-x152, vinvl-x152 and its other filters: see more_peers.py.

Their compiled operators are replaced by torchvision's, which are at least as fast, and names that numpy, Pillow and
torch have dropped are put back. Nothing in the trees is changed. The steps are those of their extraction scripts.
"""

from __future__ import annotations

import collections
import collections.abc
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms, roi_align

Run = Callable[[np.ndarray, object], None]  # an RGB image and a clock with `stage`


def load_peer(model: str, tree: Path, state: dict[str, Tensor]) -> Run:
    """The system behind a preset, with the tensors of our network of the same kind.

    Raises: SystemExit when the tree is not there or does not fit.
    """
    from more_peers import load_bua, load_bua_d2, load_vinvl

    loaders = {"vg-r101": _load_c4, "vg-x101": _load_pyramid}
    loaders |= dict.fromkeys(("bua-r101-36", "bua-r101-10-100"), load_bua)
    for name, config in (("bua-d2-r101", "test-d2-r101"), ("bua-d2-x152", "test-d2-X152")):
        loaders[name] = partial(load_bua_d2, config=config)
    for name, kind in (("vinvl-x152", 1), ("vinvl-x152-filter2", 2), ("vinvl-x152-filter0", 0)):
        loaders[name] = partial(load_vinvl, kind=kind)
    if model not in loaders:
        raise SystemExit(f"there is no peer for {model}; choose {' or '.join(loaders)}")
    for name, kind in (("float", float), ("int", int)):
        setattr(np, name, kind)
    for name in ("Mapping", "Sequence", "Iterable"):
        setattr(collections, name, getattr(collections.abc, name))
    sys.modules["torch._six"] = types.SimpleNamespace(
        string_classes=str, int_classes=int, container_abcs=collections.abc, PY3=True
    )
    return loaders[model](tree, state)


def fill(model: torch.nn.Module, state: dict[str, Tensor], rename: Callable[[str], str | None]) -> None:
    own = model.state_dict()
    for name, tensor in own.items():
        new = rename(name)
        if new in state:
            tensor.copy_(state[new])
        elif new is not None and "bbox_pred" not in new:
            raise SystemExit(f"the peer has a tensor {name} that the network here has not")
    model.eval()


def _load_c4(tree: Path, state: dict[str, Tensor]) -> Run:
    from PIL import Image

    Image.LINEAR = Image.BILINEAR
    sys.path.insert(0, str(tree))
    sys.modules["detectron2._C"] = types.ModuleType("detectron2._C")
    import detectron2

    detectron2._C = sys.modules["detectron2._C"]
    from detectron2.config import get_cfg
    from detectron2.data.transforms import ResizeShortestEdge
    from detectron2.modeling import build_model
    from detectron2.modeling.postprocessing import detector_postprocess
    from detectron2.modeling.roi_heads.fast_rcnn import FastRCNNOutputs
    from detectron2.structures import Boxes, Instances

    from extractor.tensor_names import canonical_name

    config = get_cfg()
    config.merge_from_file(str(tree / "configs/VG-Detection/faster_rcnn_R_101_C4_attr_caffemaxpool.yaml"))
    config.MODEL.DEVICE, config.MODEL.WEIGHTS, config.MODEL.RPN.POST_NMS_TOPK_TEST = "cpu", "", 300
    model = build_model(config)
    fill(model, state, canonical_name)
    resize = ResizeShortestEdge([config.INPUT.MIN_SIZE_TEST, config.INPUT.MIN_SIZE_TEST], config.INPUT.MAX_SIZE_TEST)

    def run(rgb: np.ndarray, clock) -> None:
        height, width = rgb.shape[:2]
        with clock.stage("preprocess"):
            raw = np.ascontiguousarray(rgb[:, :, ::-1])
            image = resize.get_transform(raw).apply_image(raw)
            image = torch.as_tensor(image.astype("float32").transpose(2, 0, 1))
            images = model.preprocess_image([{"image": image, "height": height, "width": width}])
        with clock.stage("backbone"):
            features = model.backbone(images.tensor)
        with clock.stage("proposals"):
            proposals, _ = model.proposal_generator(images, features, None)
        with clock.stage("RoI head"):
            heads = model.roi_heads
            maps = [features[name] for name in heads.in_features]
            pooled = heads._shared_roi_transform(maps, [p.proposal_boxes for p in proposals]).mean(dim=[2, 3])
            logits, attributes, deltas = heads.box_predictor(pooled)
            attributes[..., :-1].softmax(-1).max(-1)
        with clock.stage("selection"):
            outputs = FastRCNNOutputs(heads.box2box_transform, logits, deltas, proposals, heads.smooth_l1_beta)
            probs, boxes = outputs.predict_probs()[0][:, :-1], outputs.predict_boxes()[0]
            scores, classes = probs.max(1)
            for threshold in np.arange(0.5, 1.0, 0.1):
                clipped = Boxes(boxes.reshape(-1, 4).clone())
                clipped.clip(image.shape[1:])
                best = clipped.tensor.view(len(boxes), -1, 4)[torch.arange(len(boxes)), classes]
                keep = nms(best, scores, threshold)[:36]
                if len(keep) == 36:
                    break
            instances = Instances(tuple(image.shape[1:]))
            instances.pred_boxes, instances.scores = Boxes(best[keep]), scores[keep]
            detector_postprocess(instances, height, width)

    return run


def _load_pyramid(tree: Path, state: dict[str, Tensor]) -> Run:
    import cv2

    sys.path.insert(0, str(tree / "github" / "vqa-maskrcnn-benchmark"))

    def old_nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
        return nms(boxes + boxes.new_tensor([0, 0, 1, 1]), scores, threshold).sort().values

    operators = types.ModuleType("maskrcnn_benchmark._C")
    operators.nms = old_nms
    operators.roi_align_forward = lambda x, rois, scale, height, width, ratio: roi_align(
        x, rois, (height, width), scale, ratio, aligned=False
    )
    import maskrcnn_benchmark

    sys.modules["maskrcnn_benchmark._C"] = maskrcnn_benchmark._C = operators
    from maskrcnn_benchmark.config import cfg
    from maskrcnn_benchmark.modeling.detector import build_detection_model
    from maskrcnn_benchmark.structures.image_list import to_image_list

    from extractor.tensor_names import canonical_name

    cfg.merge_from_file(str(tree / "detectron_model.yaml"))
    cfg.merge_from_list(["MODEL.DEVICE", "cpu"])
    model = build_detection_model(cfg)
    fill(model, state, canonical_name)

    def run(rgb: np.ndarray, clock) -> None:
        with clock.stage("preprocess"):
            image = rgb[:, :, ::-1].astype(np.float32)
            image -= np.array([102.9801, 115.9465, 122.7717])
            short, long = min(image.shape[:2]), max(image.shape[:2])
            scale = 800 / short
            if np.round(scale * long) > 1333:
                scale = 1333 / long
            image = cv2.resize(image, None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
            images = to_image_list([torch.from_numpy(image).permute(2, 0, 1)], size_divisible=32)
        with clock.stage("backbone"):
            features = model.backbone(images.tensors)
        with clock.stage("proposals"):
            proposals, _ = model.rpn(images, features, None)
        with clock.stage("RoI head"):  # with the detections that the model makes and the script does not use
            output = model.roi_heads(features, proposals, None)[0]
        with clock.stage("selection"):
            found = output["proposals"] if isinstance(output, dict) else output[0]["proposals"]
            logits = output["scores"] if isinstance(output, dict) else output[0]["scores"]
            boxes, scores = found[0].bbox / scale, logits.softmax(-1)
            best = torch.zeros(len(scores))
            for c in range(1, scores.shape[1]):
                keep = old_nms(boxes, scores[:, c], 0.5)
                better = (scores[keep, c] > best[keep]) & (scores[keep, c] > 0)
                best[keep] = torch.where(better, scores[keep, c], best[keep])
            torch.sort(best, descending=True)

    return run
