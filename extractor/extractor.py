"""The extractor: images to `Regions`, by a preset and its weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from cache import Failure, InvalidRegions, Regions, UsageError

from .backbone import MIN_SIDE
from .detector import Detections, Detector
from .devices import exact_numerics, is_out_of_memory, resolve_device, resolve_precision
from .images import DecodedImage, DecodePolicy, ImageError, decode
from .presets import Preset, fingerprint, get_preset
from .resize import resize_pillow, short_side_size
from .selection import select_max_class
from .weights import load_weights, weights_path, weights_sha256

GPU_BATCH = 8  # images of one size per forward pass; on a CPU a batch gains nothing and could change the last bits


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
        self.precision = resolve_precision(precision)
        path = weights_path(preset, weights)
        self.weights_sha256 = weights_sha256(path)
        self._detector = Detector(preset.architecture)
        load_weights(self._detector, path)
        self._detector.eval().requires_grad_(False).to(self.device)
        self._mean = np.array(preset.preprocess.mean_bgr, dtype=np.float32)

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
        window = GPU_BATCH if self.device.type == "cuda" else 1  # decoded images held at a time
        for start in range(0, len(images), window):
            rows, decoded = [], []
            for i in range(start, min(start + window, len(images))):
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
        results: list[Regions | Failure | None] = [None] * len(images)
        groups: dict[tuple, list[int]] = defaultdict(list)
        for i, image in enumerate(images):
            try:
                if given[i] is not None:
                    given[i] = _check_boxes(given[i], keys[i])
            except ImageError as error:
                results[i] = error.failure()
                continue
            groups[self._resized_size(image), given[i] is None].append(i)
        batch = GPU_BATCH if self.device.type == "cuda" else 1
        with exact_numerics(self.device, self.precision):
            for (size, _), rows in groups.items():
                for start in range(0, len(rows), batch):
                    part = rows[start : start + batch]
                    self._run(part, size, images, keys, given, results, self.preset.architecture.roi_chunk)
        return results  # type: ignore[return-value]

    def _resized_size(self, image: DecodedImage) -> tuple[int, int]:
        rule = self.preset.preprocess
        return short_side_size(image.height, image.width, rule.short_side, rule.long_side)

    def _run(self, rows, size, images, keys, given, results, chunk) -> None:
        """One batch; when memory runs out, first smaller passes of the region head, then smaller batches."""
        try:
            batch = torch.stack([self._tensor(images[i], size) for i in rows]).to(self.device, non_blocking=True)
            rois = None if given[rows[0]] is None else [self._scale(given[i], images[i], size) for i in rows]
            found = [self._select(d, rois is not None) for d in self._detector.detect(batch, rois, chunk)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                if chunk > 1:
                    return self._run(rows, size, images, keys, given, results, chunk // 2)
                if len(rows) > 1:
                    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                        self._run(half, size, images, keys, given, results, chunk)
                    return None
            text = str(error).split("\n")[0] or "not enough memory"
            for i in rows:
                message = f"{text}; use a device with more memory, then run again with --retry-failed"
                results[i] = Failure(keys[i], "out_of_memory", message)
            return None
        for i, detections in zip(rows, found, strict=True):
            results[i] = self._regions(keys[i], images[i], detections, size, given[i])
        return None

    def _tensor(self, image: DecodedImage, size: tuple[int, int]) -> torch.Tensor:
        """f32[3,h,w], BGR, mean subtracted. A sliver is filled up with the mean to the least the backbone can take."""
        pixels = resize_pillow(image.rgb, size)[:, :, ::-1].astype(np.float32) - self._mean
        tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        pad_h, pad_w = max(0, MIN_SIDE - size[0]), max(0, MIN_SIDE - size[1])
        return torch.nn.functional.pad(tensor, (0, pad_w, 0, pad_h)) if pad_h or pad_w else tensor

    def _scale(self, boxes: np.ndarray, image: DecodedImage, size: tuple[int, int]) -> torch.Tensor:
        x, y = size[1] / image.width, size[0] / image.height
        return torch.from_numpy(boxes * np.array([x, y, x, y], dtype=np.float32)).to(self.device)

    def _select(self, detections: Detections, given: bool) -> Detections:
        if not given:
            detections = detections[select_max_class(detections.boxes, detections.class_probs, self.preset.selection)]
        return Detections(**{name: value.cpu() for name, value in vars(detections).items()})

    def _regions(self, key, image, detections, size, given) -> Regions | Failure:
        if given is None:
            x, y = image.width / size[1], image.height / size[0]
            boxes = detections.boxes.numpy() * np.array([x, y, x, y], dtype=np.float32)
            boxes = boxes.clip(0, np.array([image.width, image.height] * 2, dtype=np.float32))
        else:
            boxes = given
        try:
            return Regions(
                key=key,
                width=image.width,
                height=image.height,
                boxes=boxes,
                features=detections.features.numpy(),
                scores=detections.class_probs.numpy(),
                class_ids=detections.class_ids.numpy().astype(np.int32),
                class_probs=detections.class_probs.numpy(),
                attr_ids=detections.attr_ids.numpy().astype(np.int32),
                attr_probs=detections.attr_probs.numpy(),
                source_digest=image.source_digest,
            )
        except InvalidRegions as error:
            return Failure(key, error.kind, f"{error.message}; use --precision float32", "")


def _check_boxes(boxes: np.ndarray, key: str) -> np.ndarray:
    """Given boxes as f32[k,4]. Raises: ImageError of kind bad_boxes, naming the first box that cannot be pooled."""
    boxes = np.asarray(boxes, dtype=np.float32)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
        message = f"boxes have shape {boxes.shape}, expected (k, 4) with k >= 1: x1, y1, x2, y2 in image pixels"
        raise ImageError(key, "bad_boxes", message)
    bad = np.flatnonzero(~(np.isfinite(boxes).all(1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])))
    if len(bad):
        raise ImageError(key, "bad_boxes", f"box {bad[0]} is {boxes[bad[0]].tolist()}: it needs x2 > x1 and y2 > y1")
    return boxes
