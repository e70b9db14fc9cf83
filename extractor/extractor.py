"""The extractor: images to `Regions`, by a preset and its weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cache import Failure, InvalidRegions, Regions, UsageError

from .detections import Detections
from .devices import exact_numerics, is_out_of_memory, resolve_device, resolve_precision
from .images import DecodedImage, DecodePolicy, ImageError, decode
from .networks import load_network
from .preprocess import Frame, frame, network_input
from .preset import Preset, fingerprint
from .presets import get_preset
from .selection import Selection, select
from .weights import weights_path, weights_sha256
from .weights_cache import check_recorded

GPU_BATCH = 8  # images of one size per forward pass
FARTHEST = 1 << 32  # pixels to the corner of a given box; one that overflows when it is scaled ends torchvision


def load_extractor(
    name: str,
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    policy: DecodePolicy | None = None,
) -> Extractor:
    """Load a detector, ready to run.

    Args:
        name: one of `list_extractors()`.
        weights: checkpoint to use instead of the preset's own.
        device: auto, cpu, cuda or cuda:N.
        precision: auto, float32, bfloat16 or float16.
        policy: how image files are read; see `DecodePolicy`.

    Raises:
        UsageError: unknown name, device or precision.
        InputNotFound: the weights are not there.
        WeightsError: the checkpoint is damaged or belongs to another model.
    """
    return Extractor(get_preset(name), weights, device, precision, policy or DecodePolicy())


class Extractor:
    """Callable that turns images into region features. A result never depends on the images it was batched with.

    Attributes:
        preset: architecture, preprocessing, selection.
        dim: length d of a feature vector.
        classes, attributes: names that class_ids and attr_ids index.
        weights_sha256: tells the checkpoint from others, whatever its format.
        device, precision: what `auto` became.
    """

    def __init__(self, preset: Preset, weights: str | Path | None, device: str, precision: str, policy: DecodePolicy):
        self.preset = preset
        self.policy = policy
        self.device = resolve_device(device)
        self.precision = resolve_precision(precision, self.device, preset.faithful)
        self._weights = weights_path(preset, weights)
        if weights is None and preset.urls:
            check_recorded(self._weights)
        self.weights_sha256 = weights_sha256(self._weights, preset.part)
        self._network = self._load(self.precision)

    def _load(self, precision: str) -> nn.Module:
        return load_network(self.preset.architecture, self._weights, self.device, precision)

    @cached_property
    def _reference(self) -> nn.Module:
        """The network in float32, for the images that a lower precision cannot represent."""
        return self._load("float32")

    @property
    def _batch(self) -> int:
        """Images of one size per forward pass; on a CPU more gain nothing and could change the last bits."""
        return GPU_BATCH if self.device.type == "cuda" else 1

    @property
    def dim(self) -> int:
        return self.preset.dim

    @property
    def classes(self) -> tuple[str, ...]:
        return self.preset.classes

    @property
    def attributes(self) -> tuple[str, ...]:
        return self.preset.attributes

    def vocabularies(self) -> dict[str, list[str]]:
        """Names for a store's manifest."""
        return {"classes": list(self.classes), "attributes": list(self.attributes)}

    def fingerprint(self) -> dict[str, str | int | float]:
        """Everything about this extractor that may change a byte of a record, flat."""
        return fingerprint(self.preset, self.weights_sha256, self.precision, self.policy)

    def __call__(
        self,
        images: Sequence,
        boxes: Sequence[np.ndarray | None] | None = None,
        keys: Sequence[str] | None = None,
        on_error: str = "raise",
    ) -> list[Regions | Failure]:
        """Regions of each image, in order.

        Args:
            images: paths, encoded bytes, PIL images or RGB uint8 arrays [H,W,3].
            boxes: per image, boxes to describe instead of detected ones: f32[k,4], (x1, y1, x2, y2) in image pixels.
            keys: names of the results; default the path, else the index as text.
            on_error: "raise" raises the first ImageError; "return" puts a Failure in the image's place.

        Raises:
            ImageError: an image that cannot be used, with its key and the kind of failure.
            UsageError: arguments whose lengths differ, or an unknown `on_error`.
        """
        if isinstance(images, (str, bytes, Path, np.ndarray)) or not isinstance(images, Sequence):
            raise UsageError("images must be a list of images; put a single one in [ ]")
        if on_error not in ("raise", "return"):
            raise UsageError(f'on_error must be "raise" or "return", not {on_error!r}')
        for name, values in (("keys", keys), ("boxes", boxes)):
            if values is not None and len(values) != len(images):
                raise UsageError(f"{len(images)} images but {len(values)} {name}; give one per image")
        if keys is None:
            keys = [str(image) if isinstance(image, (str, Path)) else str(i) for i, image in enumerate(images)]
        results: list[Regions | Failure | None] = [None] * len(images)
        for start in range(0, len(images), self._batch):  # so many decoded images are held at a time
            rows, decoded = [], []
            for i in range(start, min(start + self._batch, len(images))):
                try:
                    decoded.append(decode(images[i], keys[i], self.policy))
                    rows.append(i)
                except ImageError as error:
                    if on_error == "raise":
                        raise
                    results[i] = error.failure()
            given = None if boxes is None else [boxes[i] for i in rows]
            for i, result in zip(rows, self.extract(decoded, [keys[i] for i in rows], given), strict=True):
                if isinstance(result, Failure) and on_error == "raise":
                    raise ImageError(result.key, result.kind, result.message, result.source)
                results[i] = result
        return results  # type: ignore[return-value]

    def decode(self, source, key: str) -> DecodedImage:
        """The decoded image, by this extractor's policy. Raises: ImageError."""
        return decode(source, key, self.policy)

    def extract(
        self, images: Sequence[DecodedImage], keys: Sequence[str], boxes: Sequence[np.ndarray | None] | None = None
    ) -> list[Regions | Failure]:
        """The model stage alone: regions of decoded images, in order; only images of one resized size share a batch."""
        given = [None] * len(images) if boxes is None else list(boxes)
        frames = [frame(self.preset.preprocess, image.height, image.width) for image in images]
        results: list[Regions | Failure | None] = [None] * len(images)
        groups: dict[tuple, list[int]] = defaultdict(list)
        for i, key in enumerate(keys):
            try:
                if given[i] is not None:
                    given[i] = _check_boxes(given[i], key)
            except ImageError as error:
                results[i] = error.failure()
                continue
            groups[frames[i].size, given[i] is None].append(i)
        with exact_numerics():
            for rows in groups.values():
                for start in range(0, len(rows), self._batch):
                    part = rows[start : start + self._batch]
                    batch = [_Input(keys[i], images[i], frames[i], given[i]) for i in part]
                    for i, result in zip(part, self._run(batch), strict=True):
                        results[i] = result
        return results  # type: ignore[return-value]

    def _run(self, batch: list[_Input], chunk: int | None = None, network: nn.Module | None = None) -> list:
        """Results of inputs of one size; when memory runs out, first smaller passes of the region head, then smaller
        batches. An image that overflows a lower precision runs again in float32, by itself."""
        chunk = chunk or self.preset.architecture.roi_chunk
        try:
            found = self._detect(batch, chunk, network or self._network)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            found, text = None, str(error).split("\n")[0] or "not enough memory"
        if found is None:  # outside the handler, where the error would keep the failed attempt's tensors alive
            return self._run_smaller(batch, chunk, network, text)
        results = []
        for item, selected in zip(batch, found, strict=True):
            if selected is not None:
                results.append(self._regions(item, *selected))
            elif self.precision != "float32" and network is None:
                results += self._run([item], chunk, self._reference)
            else:
                results.append(Failure(item.key, "non_finite", "the network's maps hold NaN or infinite values"))
        return results

    def _run_smaller(self, batch: list[_Input], chunk: int, network: nn.Module | None, reason: str) -> list:
        """Results after memory ran out; nothing smaller is left to try on a CPU, or for one image and one RoI."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            if chunk > 1:
                return self._run(batch, chunk // 2, network)
            if len(batch) > 1:
                middle = len(batch) // 2
                return self._run(batch[:middle], chunk, network) + self._run(batch[middle:], chunk, network)
        message = f"{reason}; use a device with more memory, then run again with --retry-failed"
        return [Failure(item.key, "out_of_memory", message) for item in batch]

    def _detect(self, batch: list[_Input], chunk: int, network: nn.Module) -> list[tuple[Detections, Selection] | None]:
        """Per input what was found and which of it is kept, on the CPU; None where values are not finite."""
        inputs = torch.stack([network_input(self.preset.preprocess, item.image.rgb, item.frame) for item in batch])
        rois = None
        if batch[0].boxes is not None:
            rois = [self._to_device(torch.from_numpy(item.frame.resized(item.boxes))) for item in batch]
        inputs = self._to_device(inputs).contiguous(memory_format=torch.channels_last)
        found, more = [], {}
        if getattr(network, "needs_frames", False):
            more["frames"] = [item.frame for item in batch]
        for item, detections in zip(batch, network.detect(inputs, rois, chunk, **more), strict=True):
            if detections is None or not torch.isfinite(detections.features).all():
                found.append(None)
                continue
            if item.boxes is None:
                selection = select(self.preset.selection, detections, item.frame)
            else:
                rows = torch.arange(len(detections), device=detections.rois.device)
                selection = Selection(rows, torch.from_numpy(item.boxes), detections.class_probs)
            found.append(selection.of(detections, getattr(network, "complete", None)))
        return found

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self.device.type == "cuda":  # the copy of pinned memory overlaps with what runs
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _regions(self, item: _Input, found: Detections, selection: Selection) -> Regions | Failure:
        arrays = {
            "class_ids": found.class_ids,
            "class_probs": found.class_probs,
            "attr_ids": found.attr_ids,
            "attr_probs": found.attr_probs,
            "scores": selection.scores,
            "global_features": found.embedding,
        }
        try:
            return Regions(
                key=item.key,
                width=item.image.width,
                height=item.image.height,
                boxes=selection.boxes.numpy(),
                features=found.features.numpy(),
                source_digest=item.image.source_digest,
                **{name: value.numpy() for name, value in arrays.items() if value is not None},
            )
        except InvalidRegions as error:
            return Failure(item.key, error.kind, error.message, "")


@dataclass(frozen=True)
class _Input:
    """One image on its way through the network; `boxes` f32[k,4] in its own pixels, None to detect."""

    key: str
    image: DecodedImage
    frame: Frame
    boxes: np.ndarray | None


def _check_boxes(boxes: np.ndarray, key: str) -> np.ndarray:
    """Given boxes as f32[k,4]. Raises: ImageError of kind bad_boxes, naming the first box that cannot be pooled."""
    boxes = np.asarray(boxes, dtype=np.float32)
    if not boxes.size:
        raise ImageError(key, "bad_boxes", "no boxes are given for this image")
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        message = f"boxes have shape {boxes.shape}, expected (k, 4): x1, y1, x2, y2 in image pixels"
        raise ImageError(key, "bad_boxes", message)
    bad = np.flatnonzero(~(np.isfinite(boxes).all(1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])))
    if len(bad):
        raise ImageError(key, "bad_boxes", f"box {bad[0]} is {boxes[bad[0]].tolist()}: it needs x2 > x1 and y2 > y1")
    far = np.flatnonzero(np.abs(boxes).max(axis=1) > FARTHEST)
    if len(far):
        raise ImageError(key, "bad_boxes", f"box {far[0]} is {boxes[far[0]].tolist()}: no image is that large")
    return boxes
