"""The value every package passes around: the regions of one image, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import ml_dtypes
import numpy as np

from .errors import InvalidRegions

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FEATURE_DTYPES = {"float16": np.dtype(np.float16), "float32": np.dtype(np.float32), "bfloat16": BFLOAT16}

FAILURE_KINDS = (
    "missing", "unreadable", "empty", "not_an_image", "truncated", "unsupported", "too_large", "decode_error",
    "key_invalid", "duplicate_key", "bad_boxes", "value_range", "non_finite", "out_of_memory", "worker_crash",
    "timeout",
)  # fmt: skip

# field -> (number of dimensions, leading dimension is n, allowed dtypes)
_ARRAYS: dict[str, tuple[int, bool, tuple[np.dtype, ...]]] = {
    "boxes": (2, True, (np.dtype(np.float32),)),
    "features": (2, True, tuple(FEATURE_DTYPES.values())),
    "scores": (1, True, (np.dtype(np.float32),)),
    "class_ids": (1, True, (np.dtype(np.int32),)),
    "class_probs": (1, True, (np.dtype(np.float32),)),
    "attr_ids": (1, True, (np.dtype(np.int32),)),
    "attr_probs": (1, True, (np.dtype(np.float32),)),
    "class_scores": (2, True, (np.dtype(np.float16), np.dtype(np.float32))),
    "global_features": (1, False, tuple(FEATURE_DTYPES.values())),
}


@dataclass(frozen=True, eq=False)
class Regions:
    """Region features of one image.

    Arrays are numpy and are not copied when they already have the right dtype. n is the number of regions and may be
    0; d is the feature dimension.

    Attributes:
        key: name of the image in its store, utf-8, 1 to 511 bytes.
        width, height: image size in pixels after the orientation policy; the frame of `boxes`.
        boxes: f32[n,4], (x1, y1, x2, y2) in those pixels.
        features: [n,d], float32, float16 or bfloat16 (ml_dtypes).
        scores: f32[n], what the regions were ranked by.
        class_ids, class_probs: i32[n] and f32[n], most probable class, an index into the store's class vocabulary.
        attr_ids, attr_probs: i32[n] and f32[n], the same for attributes.
        class_scores: f16|f32[n,C], the whole class distribution.
        global_features: [g], an embedding of the whole image; never a row of `features`.
        source_digest: 16 bytes, xxh3-128 of the encoded image; None for an image that was given as an array.

    Raises:
        InvalidRegions: shapes that do not fit, values that are not finite, or boxes with x2 < x1 or y2 < y1.
    """

    key: str
    width: int
    height: int
    boxes: np.ndarray
    features: np.ndarray
    scores: np.ndarray | None = None
    class_ids: np.ndarray | None = None
    class_probs: np.ndarray | None = None
    attr_ids: np.ndarray | None = None
    attr_probs: np.ndarray | None = None
    class_scores: np.ndarray | None = None
    global_features: np.ndarray | None = None
    source_digest: bytes | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key, str):
            raise InvalidRegions(self.key, "key_invalid", f"a key is text, this one is {type(self.key).__name__}")
        for name, (_, _, dtypes) in _ARRAYS.items():
            value = getattr(self, name)
            if value is not None or name in ("boxes", "features"):
                array = self._array(name, value)
                object.__setattr__(self, name, array if array.dtype in dtypes else self._cast(name, array, dtypes[0]))
        for name in ("width", "height"):
            object.__setattr__(self, name, self._pixels(name, getattr(self, name)))
        self.validate()

    def _array(self, name: str, value: Any) -> np.ndarray:
        try:
            return np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidRegions(self.key, "value_range", f"{name} is not an array: {error}") from None

    def _pixels(self, name: str, value: Any) -> int:
        try:
            if value == int(value):
                return int(value)
        except (TypeError, ValueError, OverflowError):
            pass
        raise InvalidRegions(self.key, "value_range", f"{name}={value!r} is not a whole number of pixels")

    def _cast(self, name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if name in ("features", "global_features", "class_scores"):
            dtype = FEATURE_DTYPES["float32"]
        if array.dtype.kind not in "fiub" and array.dtype != BFLOAT16:
            raise InvalidRegions(self.key, "value_range", f"{name} has dtype {array.dtype}, expected {dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
        if dtype.kind == "i" and not np.array_equal(cast, array):
            raise InvalidRegions(self.key, "value_range", f"{name} holds values that are not {dtype} integers")
        return cast

    @classmethod
    def trusted(cls, **values: Any) -> Regions:
        """Build without looking at the values: for `decode`, which has checked the layout and the checksum."""
        regions = object.__new__(cls)
        regions.__dict__.update(values)  # fields left out keep the default of the class
        return regions

    @property
    def num_regions(self) -> int:
        return len(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)

    def __repr__(self) -> str:
        extras = [f.name for f in fields(self)[5:] if getattr(self, f.name) is not None]
        return (
            f"Regions({self.key!r}, {self.width}x{self.height}, n={len(self.boxes)}, features={self.features.dtype}"
            f"{list(self.features.shape)}, with {', '.join(extras) or 'boxes only'})"
        )

    def replace(self, **changes: Any) -> Regions:
        """A copy with some fields changed, validated."""
        return replace(self, **changes)

    def copy(self) -> Regions:
        """A copy that owns its arrays."""
        return Regions.trusted(
            **{f.name: v.copy() if isinstance(v := getattr(self, f.name), np.ndarray) else v for f in fields(self)}
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """The array fields that are present, by name."""
        return {name: value for name in _ARRAYS if (value := getattr(self, name)) is not None}

    def validate(self) -> None:
        """Check shapes and values. Raises: InvalidRegions."""
        n = len(self.boxes) if self.boxes.ndim else -1
        if not (1 <= self.width < 1 << 32 and 1 <= self.height < 1 << 32):
            raise InvalidRegions(self.key, "value_range", f"no image is {self.width}x{self.height} pixels large")
        for name, array in self.arrays().items():
            ndim, per_region, _ = _ARRAYS[name]
            if array.ndim != ndim or (per_region and array.shape[0] != n):
                raise InvalidRegions(
                    self.key, "value_range", f"{name} has shape {array.shape}, expected {ndim} dims and n = {n} regions"
                )
            if array.dtype.kind != "i" and not np.isfinite(array.astype(np.float32, copy=False)).all():
                raise InvalidRegions(self.key, "non_finite", f"{name} holds NaN or infinite values")
        if self.boxes.shape[1] != 4:
            raise InvalidRegions(self.key, "bad_boxes", f"boxes has shape {self.boxes.shape}, expected (n, 4)")
        wrong = np.flatnonzero((self.boxes[:, 2] < self.boxes[:, 0]) | (self.boxes[:, 3] < self.boxes[:, 1]))
        if len(wrong):
            box = self.boxes[wrong[0]].tolist()
            raise InvalidRegions(self.key, "bad_boxes", f"box {wrong[0]} is {box}: x2 < x1 or y2 < y1")
        digest = self.source_digest
        if digest is not None and not (isinstance(digest, bytes) and len(digest) == 16):
            raise InvalidRegions(self.key, "value_range", f"source_digest={digest!r} is not 16 bytes")


@dataclass(frozen=True)
class Failure:
    """Why an image has no record.

    Attributes:
        key: name of the image in its store.
        kind: one of FAILURE_KINDS.
        message: what went wrong and what to do, for a person.
        source: where the image was read from.
    """

    key: str
    kind: str
    message: str
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in FAILURE_KINDS:
            raise ValueError(f"failure kind {self.kind!r} is not one of {', '.join(FAILURE_KINDS)}")
