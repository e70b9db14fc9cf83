"""Runs MILVLG's bottom-up-attention.pytorch and VinVL's scene_graph_benchmark from their own trees, see peers.py.

* bua-r101-36, bua-r101-10-100, bua-d2-r101, bua-d2-x152: the tree of bottom-up-attention.pytorch with its submodule
  detectron2 (v0.2.1) in it.
* vinvl-x152 and its other filters: the tree of scene_graph_benchmark. It needs yacs.

The steps are those of `extract_features.py` and of the model's own test run with the options of its README, without the
files that they write.
"""

from __future__ import annotations

import sys
import types
import urllib.parse
from pathlib import Path

import numpy as np
import torch
from peers import Run, fill
from torch import Tensor
from torchvision.ops import nms


def load_bua(tree: Path, state: dict[str, Tensor]) -> Run:
    """Its Caffe mode. Whole RoIs by torchvision; suppression as its kernel does it, on a CPU even beside a GPU."""
    model = _bua_model(tree, state, "caffe", "test-caffe-r101")
    mean = np.array([102.9801, 115.9465, 122.7717])

    def run(rgb: np.ndarray, clock) -> None:
        with clock.stage("preprocess"):
            images, scale = _bua_input(model, rgb, mean)
        with clock.stage("backbone"):
            features = model.backbone(images.tensor)
        with clock.stage("proposals"):
            proposals, _ = model.proposal_generator(images, features, None)
        with clock.stage("RoI head"):
            boxes, scores, pooled, attributes = (part[0] for part in model.roi_heads(images, features, proposals, None))
        with clock.stage("selection"):
            boxes = boxes.tensor / scale
            best = torch.zeros(len(scores))
            for c in range(1, scores.shape[1]):
                keep = _inclusive_nms(boxes, scores[:, c], 0.3)
                best[keep] = torch.where(scores[keep, c] > best[keep], scores[keep, c], best[keep])
            keep = torch.nonzero(best >= 0.2).flatten()
            if not 10 <= len(keep) <= 100:
                keep = torch.argsort(best, descending=True)[: 10 if len(keep) < 10 else 100]
            for values in (scores[keep, 1:], attributes[keep, 1:]):
                values.max(dim=1)
            pooled[keep]

    return run


def load_bua_d2(tree: Path, state: dict[str, Tensor], config: str) -> Run:
    """Its detectron2 mode, with a file of its configs/d2."""
    model = _bua_model(tree, state, "d2", config)
    from detectron2.modeling.postprocessing import detector_postprocess

    def run(rgb: np.ndarray, clock) -> None:
        with clock.stage("preprocess"):
            images, scale = _bua_input(model, rgb, 0.0)
        with clock.stage("backbone"):
            features = model.backbone(images.tensor)
        with clock.stage("proposals"):
            proposals, _ = model.proposal_generator(images, features, None)
        with clock.stage("RoI head"):
            _, pooled, _ = model.roi_heads.get_roi_features(features, proposals)
            predictions = model.roi_heads.box_predictor(pooled)
            classes = predictions[0].argmax(dim=1)
            attributes = model.roi_heads.forward_attribute_score(pooled, classes).softmax(dim=-1)
            scores = predictions[0].softmax(dim=-1)[:, :-1]
        with clock.stage("selection"):
            found, rows = model.roi_heads.box_predictor.inference(predictions, proposals)
            found = detector_postprocess(found[0], *images[0].shape[1:])
            found.pred_boxes.tensor / scale, scores[rows[0]], attributes[rows[0]], pooled[rows[0]]

    return run


def _bua_model(tree: Path, state: dict[str, Tensor], mode: str, config: str) -> torch.nn.Module:
    sys.path[:0] = [str(tree), str(tree / "detectron2")]
    _stub("detectron2._C")
    _stub("apex").amp = types.SimpleNamespace(float_function=lambda function: function)
    _stub("bua.caffe.modeling._C").nms = _inclusive_nms
    import PIL.Image

    PIL.Image.LINEAR = PIL.Image.BILINEAR
    from bua import add_config  # registers the parts of both modes
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    from extractor.tensor_names import canonical_name

    settings = get_cfg()
    add_config(types.SimpleNamespace(mode=mode), settings)
    settings.merge_from_file(str(tree / "configs" / mode / f"{config}.yaml"))
    settings.merge_from_list(["MODEL.BUA.EXTRACT_FEATS", True, "MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", ""])
    model = build_model(settings)
    fill(model, state, lambda name: name if name in state else canonical_name(name))
    return model


def _bua_input(model: torch.nn.Module, rgb: np.ndarray, mean: np.ndarray | float) -> tuple[object, float]:
    import cv2

    image = rgb[:, :, ::-1].astype(np.float32)
    image -= mean
    short, long = min(image.shape[:2]), max(image.shape[:2])
    scale = 600 / short
    if np.round(scale * long) > 1000:
        scale = 1000 / long
    image = cv2.resize(image, None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    return model.preprocess_image([{"image": torch.from_numpy(image).permute(2, 0, 1), "im_scale": scale}]), scale


def _inclusive_nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    just_below = float(np.nextafter(np.float32(threshold), np.float32(-1)))
    return nms(boxes + boxes.new_tensor([0, 0, 1, 1]), scores, just_below).sort().values


def load_vinvl(tree: Path, state: dict[str, Tensor], kind: int) -> Run:
    """The options for features of its README; `kind` is its NMS_FILTER."""
    from PIL import Image

    sys.path.insert(0, str(tree))
    unused = "timm timm.models timm.models.layers einops cityscapesscripts cityscapesscripts.helpers"
    for name in (*unused.split(), "cityscapesscripts.helpers.csHelpers", "maskrcnn_benchmark._C"):
        _stub(name)
    torch._six = sys.modules["torch._six"]
    torch._six.PY37 = True
    torch.hub._download_url_to_file, torch.hub.urlparse = torch.hub.download_url_to_file, urllib.parse.urlparse
    import maskrcnn_benchmark

    maskrcnn_benchmark._C = sys.modules["maskrcnn_benchmark._C"]
    from maskrcnn_benchmark.config import cfg
    from maskrcnn_benchmark.data.transforms import build_transforms
    from scene_graph_benchmark.AttrRCNN import AttrRCNN
    from scene_graph_benchmark.config import sg_cfg

    from extractor.tensor_names import canonical_name

    cfg.set_new_allowed(True)
    cfg.merge_from_other_cfg(sg_cfg)
    cfg.set_new_allowed(False)
    cfg.merge_from_file(str(tree / "sgg_configs/vgattr/vinvl_x152c4.yaml"))
    options = {
        "MODEL.DEVICE": "cpu",
        "MODEL.ROI_HEADS.NMS_FILTER": kind,
        "MODEL.ROI_HEADS.SCORE_THRESH": 0.2,
        "TEST.IGNORE_BOX_REGRESSION": True,
        "TEST.OUTPUT_FEATURE": True,
    }
    cfg.merge_from_list([word for option in options.items() for word in option])
    model = AttrRCNN(cfg)
    shared = "attribute.feature_extractor."  # one stage under two names
    fill(model, state, lambda name: canonical_name(name.replace(shared, "roi_heads.box.feature_extractor.")))
    transforms = build_transforms(cfg, is_train=False)

    def run(rgb: np.ndarray, clock) -> None:
        from maskrcnn_benchmark.structures.image_list import to_image_list

        with clock.stage("preprocess"):
            image = transforms(Image.fromarray(rgb), None)
            images = to_image_list([image[0] if isinstance(image, tuple) else image])
        with clock.stage("backbone"):
            features = model.backbone(images.tensors)
        with clock.stage("proposals"):
            proposals, _ = model.rpn(images, features, None)
        with clock.stage("RoI head"):  # with its selection
            _, found, _ = model.roi_heads(features, proposals, None)
        with clock.stage("selection"):  # the attributes of what was selected
            model.attribute(features, found, None)

    return run


def _stub(name: str) -> types.ModuleType:
    """A module of that name, in which every name stands for nothing."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__, module.__getattr__ = [], lambda attribute: None
    return module
