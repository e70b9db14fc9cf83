"""Grids: image transformers (CLIP, ViT, SigLIP, those of BLIP-2 and PaliGemma) whose patches are the regions, and what
all grids share."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from cache import UsageError

from .boxes import clip_boxes
from .configs import CentreCrop, GridCells
from .detections import Detections
from .preprocess import Frame, frame, network_input
from .selection import Selection, select
from .transformer_configs import TransformerConfig

# A sliver would be larger than the memory when resized: above so many pixels only what will be left of it is, which
# differs by a few levels of brightness because Pillow rounds where that begins
MOST_RESIZED = 1 << 24

# Names of ViT's modules in transformers 5, and what they are called in every checkpoint
_VIT_NAMES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
        (r"^layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
        (r"^layers\.(\d+)\.attention\.o_proj\.", r"encoder.layer.\1.attention.output.dense."),
        (r"^layers\.(\d+)\.attention\.q_proj\.", r"encoder.layer.\1.attention.attention.query."),
        (r"^layers\.(\d+)\.attention\.k_proj\.", r"encoder.layer.\1.attention.attention.key."),
        (r"^layers\.(\d+)\.attention\.v_proj\.", r"encoder.layer.\1.attention.attention.value."),
        (r"^layers\.(\d+)\.", r"encoder.layer.\1."),
    )
]
_SIGLIP_NAMES = [(re.compile(r"^(?!vision_model\.)"), "vision_model.")]


class TransformerGrid(nn.Module):
    """An image encoder of transformers behind the interface of `networks.Network`.

    A cell's features are what the last layer says of its patch: for CLIP before, for all others after the closing layer
    norm, as transformers' `last_hidden_state`. The embedding of the whole image is CLIP's projected one and SigLIP's
    pooled one, neither normalised, and the class token after the norm of ViT and BLIP-2; ViT's pooler, which half of
    the published checkpoints lack, is not used. BLIP-2's Q-Former reads the embedding and then the cells, row by row.
    PaliGemma has none; its projector reads the cells.
    """

    reduced = ("model",)
    # the text side of the published pairs, heads that have no use here and what is computed
    unused_tensors = (
        r"(text_model|text_projection|pooler|classifier|vision_model\.head)\.|logit_(scale|bias)$|.*\.position_ids$"
    )

    def __init__(self, architecture: TransformerConfig):
        super().__init__()
        self.config, self.part = architecture, architecture.part
        self.model = _build(architecture)
        names = {"vit": _VIT_NAMES, "clip": []}.get(architecture.kind, _SIGLIP_NAMES)
        self._published = {name: _translate(name, names) for name in self.model.state_dict()}

    def state_dict(self, *args, **kwargs) -> dict[str, Tensor]:
        return {self._published[name]: tensor for name, tensor in self.model.state_dict(*args, **kwargs).items()}

    def load_state_dict(self, state: dict[str, Tensor], *args, **kwargs):
        return self.model.load_state_dict({name: state[new] for name, new in self._published.items()}, *args, **kwargs)

    @torch.inference_mode()
    def detect(
        self, images: Tensor, rois: list[Tensor] | None = None, chunk: int | None = None
    ) -> Iterator[Detections | None]:
        """Detections of each image of a batch, one after the other; see `networks.Network.detect`."""
        patches, embeddings = self.encode(images)
        rows, columns = (size // self.config.patch for size in images.shape[2:])
        y, x = (np.arange(count + 1) * self.config.patch for count in (rows, columns))
        finite = torch.isfinite(patches).flatten(1).all(dim=1)
        if embeddings is not None:
            finite &= torch.isfinite(embeddings).all(dim=1)
        for index, good in enumerate(finite.tolist()):
            cells = patches[index].reshape(rows, columns, -1)
            boxes = None if rois is None else rois[index]
            whole = None if embeddings is None else embeddings[index]
            yield describe(cells, y, x, boxes, chunk or self.config.roi_chunk, whole) if good else None

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Patches f32[B,n,d], row by row, and embeddings f32[B,g], if there are any, of images f32[B,3,h,w]."""
        found = self.model(pixel_values=images.to(next(self.model.parameters()).dtype))
        hidden = found.last_hidden_state.float()
        if self.config.kind in ("siglip", "paligemma"):
            return hidden, found.pooler_output.float() if self.config.embedding else None
        return hidden[:, 1:], found.image_embeds.float() if self.config.kind == "clip" else hidden[:, 0]


def describe(
    cells: Tensor, y: np.ndarray, x: np.ndarray, rois: Tensor | None, chunk: int, embedding: Tensor | None = None
) -> Detections:
    """Detections of a grid.

    Args:
        cells: f32[rows,columns,d].
        y, x: edges of the rows and of the columns in pixels of the input, one more than there are.
        rois: boxes f32[k,4] to describe instead of the cells: by the mean of the cells, weighted by how much of the box
            lies in each. What lies beside the grid is described by the nearest pixel of it.
        chunk: boxes at a time, filled up with empty ones: fewer might differ in the last bits.
        embedding: f32[g] of the whole image.
    """
    edges_y, edges_x = (cells.new_tensor(edges) for edges in (y, x))
    flat = cells.reshape(-1, cells.shape[2])
    if rois is None:
        top, left = torch.meshgrid(edges_y[:-1], edges_x[:-1], indexing="ij")
        bottom, right = torch.meshgrid(edges_y[1:], edges_x[1:], indexing="ij")
        boxes = torch.stack((left, top, right, bottom), dim=2).reshape(-1, 4)
        return Detections(boxes, boxes, flat, embedding=embedding)
    parts = []
    for part in rois.split(chunk):
        whole = F.pad(part, (0, 0, 0, chunk - len(part)))
        rows, columns = _shares(whole[:, 1::2], edges_y), _shares(whole[:, ::2], edges_x)
        shares = (rows[:, :, None] * columns[:, None, :]).flatten(1)
        parts.append((shares @ flat)[: len(part)])
    return Detections(rois, rois, torch.cat(parts), embedding=embedding)


def _shares(spans: Tensor, edges: Tensor) -> Tensor:
    """f32[k,n]: how much of each span [k,2] lies between two of n+1 edges; the shares of a span sum to 1."""
    low = torch.minimum(torch.maximum(spans[:, :1], edges[0]), edges[-1] - 1)
    high = torch.minimum(torch.maximum(spans[:, 1:], edges[0] + 1), edges[-1])
    shared = (torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])).clamp(min=0)
    return shared / shared.sum(dim=1, keepdim=True)


@select.register
def _(rule: GridCells, found: Detections, to: Frame) -> Selection:
    boxes = found.boxes + found.boxes.new_tensor(to.origin * 2)
    boxes = clip_boxes(boxes * boxes.new_tensor(to.to_original), to.height, to.width)
    return Selection(torch.arange(len(boxes), device=boxes.device), boxes, None)


@frame.register
def _(rule: CentreCrop, height: int, width: int) -> Frame:
    new_height = new_width = rule.side
    if rule.short_side:
        long = int(rule.short_side * max(height, width) / min(height, width))
        new_height, new_width = (long, rule.short_side) if width <= height else (rule.short_side, long)
    origin = ((new_width - rule.side) // 2, (new_height - rule.side) // 2)
    return Frame(width, height, (rule.side, rule.side), (new_width / width, new_height / height), origin)


@network_input.register
def _(rule: CentreCrop, rgb: np.ndarray, to: Frame) -> Tensor:
    whole = (round(to.width * to.scale[0]), round(to.height * to.scale[1]))
    image, method = Image.fromarray(rgb), Image.Resampling[rule.filter.upper()]
    if whole[0] * whole[1] <= MOST_RESIZED:
        left, top = map(int, to.origin)
        image = image.resize(whole, method).crop((left, top, left + rule.side, top + rule.side))
    else:
        start = [low / scale for low, scale in zip(to.origin, to.scale, strict=True)]
        part = (*start, *(low + rule.side / scale for low, scale in zip(start, to.scale, strict=True)))
        image = image.resize(to.size[::-1], method, box=tuple(map(min, part, (to.width, to.height) * 2)))
    pixels = (np.asarray(image).astype(np.float64) * (1 / 255)).astype(np.float32)
    pixels = (pixels - np.array(rule.mean, np.float32)) / np.array(rule.std, np.float32)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _build(config: TransformerConfig) -> nn.Module:
    """The image encoder alone. Raises: UsageError when transformers is not installed."""
    try:
        import transformers as hf
    except ImportError as error:
        raise UsageError(
            f"this model needs transformers, which cannot be imported ({error}): pip install 'roivault[consumers]'"
        ) from error
    shape = {
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "patch_size": config.patch,
        "image_size": config.image,
        "hidden_act": config.activation,
        "layer_norm_eps": config.norm_epsilon,
    }
    if config.kind == "clip":
        return hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**shape, projection_dim=config.embedding))
    if config.kind == "blip2":
        return hf.Blip2VisionModel(hf.Blip2VisionConfig(**shape))
    if config.kind in ("siglip", "paligemma"):
        return hf.SiglipVisionModel(hf.SiglipVisionConfig(**shape, vision_use_head=bool(config.embedding)))
    return hf.ViTModel(hf.ViTConfig(**shape), add_pooling_layer=False)


def _translate(name: str, table: list[tuple[re.Pattern, str]]) -> str:
    for pattern, replacement in table:
        name = pattern.sub(replacement, name)
    return name
