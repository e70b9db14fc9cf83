"""A folder of `<key>.npz`, as bottom-up-attention.pytorch writes it: x, bbox, num_bbox, image_h, image_w, info.

In its detectron2 mode `attrs_id` has the probability of every attribute, and the logits beside it are of other regions
or say the same again.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..regions import Regions
from .base import BadRow, Format, Notes, Problem
from .fields import regions_of
from .npy import load_npy
from .rows import files

_MAX_BYTES = 1 << 28  # of the arrays of one image
_CARRIES = frozenset({"boxes", "features", "class_ids", "class_probs", "attr_ids", "attr_probs", "class_scores"})


def matches(path: Path) -> bool:
    return path.is_dir() and next(files(path, ".npz"), None) is not None


def read(path: Path, notes: Notes) -> Iterator[Regions | Problem]:
    for file in files(path, ".npz"):
        where = file.relative_to(path).as_posix()
        key = where.removesuffix(".npz")
        try:
            yield regions_of(key, _fields(file), notes)
        except BadRow as error:
            yield Problem.of(error, where, key)
        except (ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # also encrypted
            yield Problem(where, f"it cannot be read as a .npz: {error}", key)


def _fields(file: Path) -> dict:
    """`info` says again what stands beside it, and has ids and confidences; its num_boxes is that of `num_bbox`."""
    with zipfile.ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > _MAX_BYTES:
            raise ValueError(f"its arrays would take {size:,} bytes, which is no image's; the most is {_MAX_BYTES:,}")
        fields = {}
        for name in archive.namelist():
            with archive.open(name) as member:
                fields[name.removesuffix(".npy")] = load_npy(member, f"{file}, {name}")
    info = fields.pop("info", None)
    if isinstance(info, dict):
        _best_attributes(info)
    own = {"image_h", "image_w", "boxes", "bbox", "features", "x"} & fields.keys()
    more = {name: value for name, value in (info if isinstance(info, dict) else {}).items() if name not in own}
    return {**more, **fields}


def _best_attributes(info: dict) -> None:
    """Of the probabilities of all attributes the greatest."""
    probs = info.get("attrs_id")
    if isinstance(probs, np.ndarray) and probs.ndim == 2 and probs.shape[1]:
        info.update(attrs_id=probs.argmax(axis=1), attrs_conf=probs.max(axis=1))


FORMAT = Format(
    "bua-npz",
    "folder of KEY.npz (bottom-up-attention.pytorch)",
    "objects_id counts the lines of the vocabulary from 0: background, column 0 of the scores, was cut off before",
    _CARRIES,
    matches,
    read,
)
