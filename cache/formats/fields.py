"""Records that other systems keep as named values: which of their names mean which field of Regions.

The names are those of the scripts that wrote most caches: Volta's and IGLUE's (HDF5 groups and LMDB), mmf's
(`_info.npy`), bottom-up-attention.pytorch's (`.npz`) and LXMERT's. In all of them boxes are (x1, y1, x2, y2) in pixels
of the original image.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InvalidRegions
from ..regions import Regions
from .base import BadRow, Notes

_NAMES: dict[str, tuple[str, ...]] = {
    "width": ("img_w", "image_w", "image_width", "width"),
    "height": ("img_h", "image_h", "image_height", "height"),
    "boxes": ("boxes", "bbox"),
    "features": ("features", "x"),
    "class_ids": ("obj_id", "objects_id", "objects", "class_ids"),
    "class_probs": ("obj_conf", "objects_conf", "class_probs"),
    "attr_ids": ("attr_id", "attrs_id", "attr_ids"),
    "attr_probs": ("attr_conf", "attrs_conf", "attr_probs"),
    "scores": ("scores",),
    "class_scores": ("cls_prob", "class_scores"),
    "global_features": ("global_features",),
    "source_digest": ("source_digest",),
}
IGLUE_NAMES = {  # of what Volta's and IGLUE's scripts write
    "width": "img_w",
    "height": "img_h",
    "class_ids": "obj_id",
    "class_probs": "obj_conf",
    "attr_ids": "attr_id",
    "attr_probs": "attr_conf",
    "class_scores": "cls_prob",
}
_FIELD_OF = {name: field for field, names in _NAMES.items() for name in names}
_RANKED_BY = ("obj_conf", "objects_conf")  # their regions were ranked by these
_COUNTS = ("num_boxes", "num_bbox", "num_objects")
_SAID_ELSEWHERE = {"img_id", "image_id", "feature_path", *_COUNTS}
_BYTES_OF = {"class_ids": "<i8", "attr_ids": "<i8", "source_digest": "u1"}  # other fields are float32


def regions_of(key: str, fields: Mapping[str, Any], notes: Notes) -> Regions:
    """The regions in named values: arrays, or their bytes as they are or in base64.

    Fields that Regions has no place for are noted. Raises: BadRow.
    """
    values: dict[str, Any] = {}
    for name, value in fields.items():
        field = _FIELD_OF.get(name)
        if value is None or name in _SAID_ELSEWHERE:
            continue
        if field is None:
            notes.drop(name)
        elif field in values:
            raise BadRow(f"{name} says again what another field says already: {field}")
        else:
            values[field] = value
    missing = [field for field in ("boxes", "features", "width", "height") if field not in values]
    if missing:
        raise BadRow(f"there is no {' and no '.join(f'{field} ({_names(field)})' for field in missing)}")
    width, height = (whole(field, values.pop(field)) for field in ("width", "height"))
    arrays = {field: _array(field, value) for field, value in values.items()}
    boxes = arrays["boxes"] = _rows("boxes", arrays["boxes"], len(arrays["boxes"].reshape(-1)) // 4)
    for field in ("features", "class_scores"):
        if field in arrays:
            arrays[field] = _rows(field, arrays[field], len(boxes))
    for count in _COUNTS:
        if fields.get(count) is not None and whole(count, fields[count]) != len(boxes):
            notes.drop(f"{count} (where it differs from the number of boxes)")
    if "scores" not in arrays and any(fields.get(name) is not None for name in _RANKED_BY):
        arrays["scores"] = arrays["class_probs"]
    if "class_probs" not in arrays and {"class_scores", "class_ids"} <= arrays.keys():
        _add_class_probs(arrays)
    if arrays["features"].dtype.itemsize > 4:
        notes.remark(f"features of {arrays['features'].dtype} were rounded to float32")
    digest = arrays.pop("source_digest", None)
    try:
        return Regions(key, width, height, source_digest=None if digest is None else digest.tobytes(), **arrays)
    except InvalidRegions as error:
        raise BadRow(error.message, error.kind) from None


def fields_of(regions: Regions, names: Mapping[str, str]) -> dict[str, Any]:
    """The arrays of a record as other systems expect them, ids as int64 and the rest as float32.

    Args:
        names: the layout's own name of a field, where it has one; fields that it has none for keep ours.
    """
    fields: dict[str, Any] = {}
    for field, array in regions.arrays().items():
        kind = np.int64 if field.endswith("_ids") else array.dtype if field == "class_scores" else np.float32
        fields[names.get(field, field)] = array.astype(kind)
    if regions.source_digest is not None:
        fields["source_digest"] = np.frombuffer(regions.source_digest, np.uint8)
    fields[names["width"]], fields[names["height"]] = regions.width, regions.height
    return fields


def from_bytes(field: str, data: bytes | str) -> np.ndarray:
    """The numbers in bytes, or in the base64 of bytes: int64 for ids, float32 otherwise. Raises: BadRow."""
    dtype = np.dtype(_BYTES_OF.get(field, "<f4"))
    raw = data.encode("latin1", "replace") if isinstance(data, str) else bytes(data)
    try:
        raw = base64.b64decode(raw, validate=True)
    except binascii.Error:
        if isinstance(data, str):
            raise BadRow(f"{field} is not base64", "truncated") from None
    if len(raw) % dtype.itemsize:
        raise BadRow(f"{field} has {len(raw)} bytes, not a whole number of {dtype.name} values", "truncated")
    return np.frombuffer(raw, dtype)


def _array(field: str, value: Any) -> np.ndarray:
    if isinstance(value, (bytes, bytearray, str)):
        return from_bytes(field, value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "fiub":
        raise BadRow(f"{field} holds no numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _rows(field: str, array: np.ndarray, n: int) -> np.ndarray:
    """As n rows; what has two dimensions already must have n rows."""
    if array.ndim == 2 and len(array) == n:
        return array
    if array.ndim == 1 and (array.size % n == 0 if n else array.size == 0):
        return array.reshape(n, -1) if n else array.reshape(0, 4 if field == "boxes" else 0)
    raise BadRow(f"{field} has the shape {array.shape}, which does not fit {n} boxes", "value_range")


def whole(field: str, value: Any) -> int:
    """A number of pixels or boxes, which may be text or an array of one. Raises: BadRow."""
    try:
        number = np.asarray(value).reshape(()).item()
        whole = int(number)
    except (ValueError, TypeError, OverflowError):
        raise BadRow(f"{field} is not a number") from None
    if whole != number and not isinstance(number, str):
        raise BadRow(f"{field} is {number}, not a whole number")
    if abs(whole) >= 1 << 31:
        raise BadRow(f"{field} is {whole}, which cannot be", "value_range")
    return whole


def _add_class_probs(arrays: dict[str, np.ndarray]) -> None:
    """The probability that the class distribution gives to each region's class."""
    ids, scores = arrays["class_ids"], arrays["class_scores"]
    fit = ids.dtype.kind in "iu" and ids.shape == scores.shape[:1]
    if fit and not (len(ids) and (ids.min() < 0 or ids.max() >= scores.shape[1])):
        arrays["class_probs"] = scores[np.arange(len(ids)), ids].astype(np.float32)


def _names(field: str) -> str:
    return " or ".join(_NAMES[field])
