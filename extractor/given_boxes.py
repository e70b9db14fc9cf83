"""Boxes that the user gives, read from a file and found by image key.

A file is one of
* COCO annotations: {"images": [{"id", "file_name"}], "annotations": [{"image_id", "bbox"}]};
* COCO results: [{"image_id", "bbox"}], where the image id, as text, is the key;
* JSON lines: {"key": ..., "boxes": [[...], ...]}, where "image" or "file_name" may stand for "key";
* .npz: one array [k,4] per key; .npy: one array [k,4] for every image, such as a grid in relative units.

An image is found under its key, else under its file name, else under that without its suffix, as long as only one entry
of the file has that name; a picture of COCO (`COCO_val2014_000000000042`, `000000000042`) at last under its number.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cache import DataError, Failure, InputNotFound, Regions, UsageError
from cache.dataset_keys import coco_image_id

if TYPE_CHECKING:
    from .extractor import Extractor
    from .images import DecodedImage

FORMATS = ("xyxy", "xywh")
UNITS = ("pixels", "relative")


class GivenBoxes:
    """All boxes of a file.

    Attributes:
        path: the file.
        box_format: "xyxy" (two corners) or "xywh" (corner and size); "xywh" is what COCO files have.
        units: "pixels" of the image after the orientation policy, or "relative" to its width and height.
        sha256: of the file, hexadecimal.

    Raises:
        UsageError: an unknown format or unit.
        InputNotFound: there is no such file.
        DataError: the file cannot be understood; names the entry.
    """

    def __init__(self, path: str | Path, box_format: str | None = None, units: str = "pixels"):
        for option, value, choices in (("--box-format", box_format, FORMATS), ("--box-units", units, UNITS)):
            if value not in (None, *choices):
                raise UsageError(f"{option} {value!r} is not one of {', '.join(choices)}")
        self.path, self.units = Path(path), units
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise InputNotFound(f"the boxes {self.path} cannot be read: {error.strerror or error}") from error
        self.sha256 = hashlib.sha256(data).hexdigest()
        natural = "xyxy"
        self._everywhere: np.ndarray | None = None
        self._by_key: dict[str, np.ndarray] = {}
        if data.startswith(b"\x93NUMPY"):
            self._everywhere = self._array(self._numpy(io.BytesIO(data)), "the array")
        elif data.startswith(b"PK\x03\x04"):
            self._by_key = dict(self._npz(data))
        else:
            rows, natural = self._json(data)
            self._by_key = self._gather(rows)
        self.box_format = box_format or natural
        self._by_name = _unique_names(self._by_key)

    def choices(self) -> dict[str, str]:
        """What of this changes the bytes of a record, for a store's fingerprint."""
        return {"boxes_sha256": self.sha256, "box_format": self.box_format, "box_units": self.units}

    def of(self, key: str, width: int, height: int) -> np.ndarray:
        """Boxes of an image of that size: f32[k,4], (x1, y1, x2, y2) in its pixels; k is 0 when there are none."""
        boxes = self._everywhere
        if boxes is None:
            name = key.rsplit("/", 1)[-1]
            found = self._by_key.get(key)
            for short in (name, name.rsplit(".", 1)[0], _coco_number(name)):
                found = self._by_name.get(short) if found is None else found
            boxes = np.zeros((0, 4)) if found is None else found
        boxes = boxes.astype(np.float64)
        if self.box_format == "xywh":
            boxes = np.concatenate((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), axis=1)
        if self.units == "relative":
            boxes = boxes * [width, height, width, height]
        return boxes.astype(np.float32)

    def _json(self, data: bytes) -> tuple[Iterable[tuple[str, Any, str]], str]:
        """(key, boxes, where in the file) of each entry, and the format that such files have."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return self._lines(data), "xyxy"
        if isinstance(content, dict) and "annotations" in content:
            return self._coco(content), "xywh"
        if isinstance(content, list):
            return self._results(content), "xywh"
        return self._lines(json.dumps(content).encode()), "xyxy"

    def _coco(self, content: dict) -> Iterator[tuple[str, Any, str]]:
        try:
            names = {image["id"]: str(image["file_name"]) for image in content["images"]}
            for i, annotation in enumerate(content["annotations"]):
                image = annotation["image_id"]
                if image not in names:
                    raise DataError(f"{self.path}: annotation {i} is of an image {image} that is not listed")
                yield names[image], [annotation["bbox"]], f"annotation {i}"
        except (KeyError, TypeError) as error:
            raise DataError(f"{self.path} looks like COCO annotations, but lacks or garbles {error}") from error

    def _results(self, content: list) -> Iterator[tuple[str, Any, str]]:
        for i, result in enumerate(content):
            try:
                yield str(result["image_id"]), [result["bbox"]], f"result {i}"
            except (KeyError, TypeError) as error:
                raise DataError(f"{self.path}: result {i} has no image_id or bbox") from error

    def _lines(self, data: bytes) -> Iterator[tuple[str, Any, str]]:
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                key = next(entry[name] for name in ("key", "image", "file_name") if name in entry)
                yield str(key), entry["boxes"], f"line {number}"
            except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
                raise DataError(f'{self.path}: line {number} is not {{"key": ..., "boxes": [[...], ...]}}') from error

    def _npz(self, data: bytes) -> Iterator[tuple[str, np.ndarray]]:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for member in archive.namelist():
                    key = member.removesuffix(".npy")
                    yield key, self._array(self._numpy(io.BytesIO(archive.read(member))), f"key {key!r}")
        except (zipfile.BadZipFile, OSError, RuntimeError) as error:
            raise DataError(f"{self.path} is damaged: {error}") from error

    def _numpy(self, file: io.BytesIO) -> np.ndarray:
        try:
            return np.load(file, allow_pickle=False)
        except Exception as error:  # a damaged file can fail numpy in any way, such as by asking for all memory
            raise DataError(f"{self.path} is damaged, or holds objects instead of numbers: {error}") from error

    def _gather(self, rows: Iterable[tuple[str, Any, str]]) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = defaultdict(list)
        for key, boxes, where in rows:
            parts[key].append(self._array(boxes, f"{where}, key {key!r}"))
        return {key: np.concatenate(arrays) for key, arrays in parts.items()}

    def _array(self, boxes: Any, where: str) -> np.ndarray:
        try:
            array = np.asarray(boxes if len(boxes) else np.zeros((0, 4)), dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"{self.path}: {where}: the boxes are not rows of 4 numbers") from error
        if array.ndim != 2 or array.shape[1] != 4:
            raise DataError(f"{self.path}: {where}: boxes have shape {array.shape}, expected (k, 4)")
        return array


def _coco_number(name: str) -> str:
    """The number of a picture of COCO, "" for any other: there numbers are not padded to 12 digits."""
    number = coco_image_id(name)
    return str(number) if number is not None and re.search(r"(^|_)\d{12}(\.\w+)?$", name) else ""


def _unique_names(by_key: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Entries by file name and by stem, where just one entry has it."""
    owners: dict[str, set[str]] = defaultdict(set)
    for key in by_key:
        name = key.rsplit("/", 1)[-1]
        owners[name].add(key)
        owners[name.rsplit(".", 1)[0]].add(key)
    return {name: by_key[next(iter(keys))] for name, keys in owners.items() if len(keys) == 1}


class BoxExtractor:
    """An extractor that describes the boxes of a file instead of detecting; an image without any is a failure."""

    def __init__(self, extractor: Extractor, boxes: GivenBoxes):
        self.extractor, self.boxes = extractor, boxes
        self.device, self.precision, self.policy = extractor.device, extractor.precision, extractor.policy

    def decode(self, source: Any, key: str) -> DecodedImage:
        return self.extractor.decode(source, key)

    def extract(self, images: Sequence[DecodedImage], keys: Sequence[str]) -> list[Regions | Failure]:
        """Regions of decoded images, in order, with the boxes that are given for their keys."""
        boxes = [self.boxes.of(key, image.width, image.height) for key, image in zip(keys, images, strict=True)]
        return self.extractor.extract(images, keys, boxes)
