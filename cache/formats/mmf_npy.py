"""Two files for each image, as mmf's extraction scripts write them: `<key>.npy` with the features, and `<key>_info.npy`
with a pickled dict of boxes, image size, classes and class probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..regions import Regions
from .base import ALL_FIELDS, BadRow, Format, Notes, Problem, Vocabularies
from .fields import fields_of, regions_of
from .npy import load_npy
from .rows import check_path, files

_INFO = "_info.npy"
_NAMES = {
    "width": "image_width",
    "height": "image_height",
    "boxes": "bbox",
    "class_ids": "objects",
    "class_scores": "cls_prob",
}


def matches(path: Path) -> bool:
    return path.is_dir() and any(file.name.endswith(_INFO) for file in files(path, ".npy"))


def read(path: Path, notes: Notes) -> Iterator[Regions | Problem]:
    """Both files of a pair must be there. A single file with a dict of everything is read too."""
    for file in files(path, ".npy"):
        if file.name.endswith(_INFO):
            if not file.with_name(file.name.removesuffix(_INFO) + ".npy").exists():
                name = file.relative_to(path)
                yield Problem(str(name), "there is no file of features for it", _key(path, file, _INFO), "missing")
            continue
        key, where = _key(path, file, ".npy"), str(file.relative_to(path))
        try:
            yield regions_of(key, _fields(file), notes)
        except (ValueError, OSError) as error:
            yield Problem(where, str(error), key)
        except BadRow as error:
            yield Problem.of(error, where, key)


def _fields(file: Path) -> dict:
    with open(file, "rb") as data:
        features = load_npy(data, str(file))
    if isinstance(features, dict):
        return features
    info_file = file.with_name(file.name.removesuffix(".npy") + _INFO)
    try:
        with open(info_file, "rb") as data:
            info = load_npy(data, str(info_file))
    except FileNotFoundError:
        raise BadRow(f"{info_file.name}, with its boxes, is missing", "missing") from None
    except ValueError as error:
        raise BadRow(f"{info_file.name}: {error}") from None
    if not isinstance(info, dict):
        raise BadRow(f"{info_file.name} holds no dict")
    return {**info, "features": features}


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes):
    path.mkdir()

    def put(regions: Regions) -> None:
        check_path(regions.key)
        file = path / f"{regions.key}.npy"
        info_file = file.with_name(file.name.removesuffix(".npy") + _INFO)
        if file.name.endswith(_INFO) or file.exists() or info_file.exists() or ".npy" in regions.key:
            raise BadRow("the layout would take its files for those of another key", "key_invalid")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadRow("a part of it is the file of another key", "key_invalid") from None
        info = fields_of(regions, _NAMES)
        np.save(file, info.pop("features"))
        np.save(info_file, {**info, "num_boxes": len(regions)}, allow_pickle=True)

    yield put


def _key(root: Path, file: Path, suffix: str) -> str:
    return file.relative_to(root).as_posix().removesuffix(suffix)


FORMAT = Format(
    "mmf-npy",
    "folder of KEY.npy and KEY_info.npy (mmf, IGLUE)",
    "objects counts the lines of the vocabulary from 0; extracted with --background it counts from 1, after "
    "background: then say --class-offset -1",
    ALL_FIELDS,
    matches,
    read,
    write,
)
