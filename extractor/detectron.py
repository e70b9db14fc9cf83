"""Adapter for the detectors of an installed detectron2: any GeneralizedRCNN with a C4 or FPN box head.

The model is detectron2's own; what is done with it - preprocessing, pooling given boxes, taking a layer, choosing the
regions - is the same as for every other network here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cache import InputNotFound, UsageError

from .boxes import clip_boxes
from .configs import DetectronConfig
from .detections import Detections


def read_config(name: str) -> Any:
    """The detectron2 configuration in a yaml file, or of that name in detectron2's model zoo.

    Raises:
        UsageError: detectron2 is not installed, or the file is not a configuration.
        InputNotFound: there is neither such a file nor such a name.
    """
    try:
        from detectron2.config import get_cfg
    except ImportError as error:
        raise UsageError(
            f"this model needs detectron2, which cannot be imported ({error}); see "
            "https://detectron2.readthedocs.io/tutorials/install.html"
        ) from error
    path = name
    if not os.path.isfile(path):
        try:
            from detectron2.model_zoo import get_config_file

            path = get_config_file(name)
        except (RuntimeError, ImportError) as error:
            raise InputNotFound(f"there is no file {name}, nor has detectron2's model zoo such a model") from error
    config = get_cfg()
    try:
        config.merge_from_file(path)
    except Exception as error:  # yaml, yacs and detectron2's own checks
        raise UsageError(f"{path} is not a configuration of this detectron2: {error}") from error
    return config


class DetectronNetwork(nn.Module):
    """A GeneralizedRCNN behind the interface of `networks.Network`; its state_dict is that of the model."""

    reduced = ("model.backbone",)
    unused_tensors = r"roi_heads\.(mask|keypoint)_(head|pooler)\."

    def __init__(self, architecture: DetectronConfig):
        super().__init__()
        from detectron2.modeling import build_model

        config = read_config(architecture.config)
        config.MODEL.MASK_ON = config.MODEL.KEYPOINT_ON = False
        config.MODEL.DEVICE = "meta" if torch.empty(0).is_meta else "cpu"
        self.config = architecture
        self.model = build_model(config)
        self.shared = hasattr(self.model.roi_heads, "res5")  # C4: the head is the backbone's last stage
        if not self.shared and not isinstance(getattr(self.model.roi_heads, "box_head", None), nn.Sequential):
            kind = type(self.model.roi_heads).__name__
            raise UsageError(f"{architecture.config}: a {kind} has no single box head to take features from")
        self.layers = [] if self.shared else [name for name, _ in self.model.roi_heads.box_head.named_children()]
        if architecture.layer not in ("pooled", *self.layers):
            choices = ", ".join(["pooled", *(name for name in self.layers if "relu" not in name and name != "flatten")])
            raise UsageError(f"{architecture.config}: there is no layer {architecture.layer!r}; choose {choices}")

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        return self.model.load_state_dict(state, *args, **kwargs)

    @torch.inference_mode()
    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; see `networks.Network.detect`."""
        from detectron2.structures import ImageList

        size = (images.shape[2], images.shape[3])
        multiple = max(1, self.model.backbone.size_divisibility)
        padded = F.pad(images, (0, -size[1] % multiple, 0, -size[0] % multiple))
        dtype = next(self.model.backbone.parameters()).dtype
        maps = {name: x.float() for name, x in self.model.backbone(padded.to(dtype)).items()}
        if rois is None:
            proposals, _ = self.model.proposal_generator(ImageList(padded, [size] * len(images)), maps)
            rois = [found.proposal_boxes.tensor for found in proposals]
        heads = self.model.roi_heads
        features = [maps[name] for name in (heads.in_features if self.shared else heads.box_in_features)]
        finite = torch.stack([torch.isfinite(x).flatten(1).all(dim=1) for x in maps.values()]).all(dim=0).tolist()
        for index, boxes in enumerate(rois):
            own = [x[index : index + 1] for x in features]
            yield self.describe(own, boxes, size, chunk) if finite[index] else None

    def describe(self, maps: list[Tensor], rois: Tensor, size: tuple[int, int], chunk: int | None = None) -> Detections:
        """Detections of one image's rois f32[k,4]; the head always runs on whole chunks, see `Detector.describe`."""
        chunk = chunk or self.config.roi_chunk
        parts = [self._describe_chunk(maps, part, size, chunk) for part in rois.split(chunk)] if len(rois) else []
        return Detections.cat(parts or [self._describe_chunk(maps, rois, size, chunk)])

    def _describe_chunk(self, maps: list[Tensor], rois: Tensor, size: tuple[int, int], chunk: int) -> Detections:
        from detectron2.structures import Boxes

        count, heads = len(rois), self.model.roi_heads
        whole = F.pad(rois, (0, 0, 0, chunk - count))
        if self.shared:
            features = head = heads._shared_roi_transform(maps, [Boxes(whole)]).mean(dim=(2, 3))
        else:
            features, head = self._box_head(heads.box_pooler(maps, [Boxes(whole)]))
        logits, deltas = heads.box_predictor(head)
        probs = logits.softmax(dim=1)[:count]
        boxes = heads.box_predictor.box2box_transform.apply_deltas(deltas, whole)[:count]
        boxes = clip_boxes(boxes.reshape(-1, 4), *size).reshape(count, -1, 4)
        boxes = boxes.expand(-1, probs.shape[1] - 1, -1)  # one box for all classes where the model has just that
        class_probs, class_ids = probs[:, :-1].max(dim=1)
        rows = torch.arange(count, device=rois.device)
        return Detections(
            rois=rois,
            boxes=boxes[rows, class_ids],
            features=features[:count],
            class_ids=class_ids,
            class_probs=class_probs,
            class_scores=probs[:, 1:] if self.config.shifted_scores else probs[:, :-1],
            class_boxes=boxes,
        )

    def _box_head(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen layer and the head's output for pooled maps [k,C,s,s]."""
        kept, x = pooled.mean(dim=(2, 3)), pooled
        for name, layer in self.model.roi_heads.box_head.named_children():
            x = layer(x)
            if name == self.config.layer or (
                self.config.activation == "post" and name == self.config.layer.replace("fc", "fc_relu")
            ):
                kept = x.clone()
        return (kept.mean(dim=(2, 3)) if kept.ndim == 4 else kept), x
