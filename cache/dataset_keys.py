"""Key rules of the datasets: a picture's place on disk and a row of the annotations give one and the same key.

    image_key("marvl", "marvl-images/sw/images/39-Panci/39-11.jpg")     "sw/39-11"
    candidates({"language": "sw", "left_img": "39-0.jpg", ...})[0]       ["sw/39-0", "39-0", ...]

| dataset           | key                                           | in the annotations                          |
|-------------------|-----------------------------------------------|---------------------------------------------|
| coco (2014)       | COCO_val2014_000000520430                     | img_path, file_name                         |
| coco (2017)       | 000000050403                                  | image, file_name                            |
| flickr30k         | 1007129816                                    | Flikr30kID, Flickr30K_ID, img_path          |
| xflickrco         | as flickr30k and coco 2014                    | img_path                                    |
| visual_genome     | 2370799, GQA's testdev n161313                | imageId, img_id, image_id                   |
| nlvr2             | dev-850-0-img0                                | identifier (two pictures)                   |
| marvl             | sw/39-11: the names recur in other languages  | language with left_img, right_img           |
| wit               | wit-test_0, wit_545045                        | wit_ix (image_idx is not unique)            |
| open_images       | d89a4889331ce042                              | image/key, image_id                         |

Old caches name the same pictures otherwise; `candidates` lists those forms too, the key itself first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from .errors import DataError, UsageError

MARVL_LANGUAGES = ("id", "sw", "ta", "tr", "zh")
_COCO_2014 = re.compile(r"COCO_(?:train|val|test)\d{4}_(\d{12})")
_OPEN_IMAGES = re.compile(r"[0-9a-f]{16}")
_PARTS_OF_2014 = ("val2014", "train2014")


def _name(path: str) -> str:
    """The last part of a path, without what Multi30K appends to it (`NAME.jpg#367178`)."""
    return path.replace("\\", "/").rpartition("/")[2].partition("#")[0]


def _stem(path: str) -> str:
    name = _name(path)
    return name.rpartition(".")[0] or name


def _number(path: str) -> str:
    """The stem without leading zeros, where it is a number."""
    stem = _stem(path)
    return str(int(stem)) if stem.isascii() and stem.isdigit() else stem


def _flickr_or_coco(path: str) -> str:
    return _stem(path) if _COCO_2014.fullmatch(_stem(path)) else _number(path)


def _marvl(path: str) -> str:
    """The language is the nearest folder above that is named so."""
    for folder in reversed(path.replace("\\", "/").split("/")[:-1]):
        if folder in MARVL_LANGUAGES:
            return f"{folder}/{_stem(path)}"
    raise DataError(
        f"{path!r} does not tell its language, without which MaRVL's names are ambiguous: keep the pictures in folders "
        f"of which one is named {', '.join(MARVL_LANGUAGES)}, as in sw/images/39-Panci/39-11.jpg"
    )


_PATH_RULES: dict[str, Callable[[str], str]] = {
    "coco": _stem,
    "flickr30k": _number,
    "xflickrco": _flickr_or_coco,
    "visual_genome": _stem,
    "nlvr2": _stem,
    "marvl": _marvl,
    "wit": _stem,
    "open_images": _stem,
}
DATASETS = tuple(_PATH_RULES)


def image_key(dataset: str, path: str) -> str:
    """Key of a picture of a dataset from its path; folders above its name matter for MaRVL only.

    Raises:
        UsageError: there is no such dataset.
        DataError: the path does not tell the key.
    """
    if dataset not in _PATH_RULES:
        raise UsageError(f"there is no key rule for {dataset!r}; there are {', '.join(DATASETS)}")
    return _PATH_RULES[dataset](path)


def coco_image_id(key: str) -> int | None:
    """The number by which COCO's annotations call the image of a key of 2014 or 2017; None for another key."""
    stem = _stem(key)
    match = _COCO_2014.fullmatch(stem)
    digits = match[1] if match else stem
    return int(digits) if digits.isascii() and digits.isdigit() else None


def field_of(record: Mapping[str, Any]) -> str | None:
    """The field by which an annotation row names its pictures; None if it has none of those known."""
    return next((field for field in _RECORD_RULES if record.get(field) is not None), None)


def candidates(record: Mapping[str, Any]) -> list[list[str]]:
    """Every form in which stores and old caches name the pictures of an annotation row.

    Returns: for each picture of the row (two for NLVR2 and MaRVL), its keys in the order in which to try them: ours,
        then those of published caches. A form that names another picture in a store of several languages or datasets
        (MaRVL without the language) comes last.

    Raises: DataError: the row has none of the fields that name a picture, or not what goes with it.
    """
    if field := field_of(record):
        try:
            return [list(dict.fromkeys(forms)) for forms in _RECORD_RULES[field](record)]
        except (KeyError, AttributeError, TypeError) as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            row = f"an annotation row with {field} {record[field]!r}"
            raise DataError(f"{row} does not tell its pictures: {why}") from None
    raise DataError(
        f"an annotation row with the fields {', '.join(map(str, record)) or 'none at all'} names no picture; the "
        f"fields that do are {', '.join(_RECORD_RULES)}"
    )


def _flickr30k_forms(value: Any) -> list[str]:
    number = _number(str(value))
    return [number, _stem(str(value)), f"{number}.jpg", f"flickr30k-images/{number}.jpg"]


def _coco_2014_forms(value: str) -> list[str]:
    stem = _stem(value)
    digits = _COCO_2014.fullmatch(stem)[1]
    folder = stem.split("_")[1]
    return [stem, f"{stem}.jpg", f"{folder}/{stem}.jpg", f"{folder}/{stem}", str(int(digits)), digits]


def _coco_2017_forms(record: Mapping[str, Any]) -> list[str]:
    """The same pictures have other names in COCO 2014."""
    stem = _stem(record["image"])
    folder = str(record.get("image_link", "")).split("/")[-2:-1]
    names = [f"COCO_{part}_{stem}" for part in _PARTS_OF_2014]
    old = [*names, *(f"{name}.jpg" for name in names)]
    return [stem, f"{stem}.jpg", *(f"{part}/{stem}.jpg" for part in folder), *old, _number(stem)]


def _file_name_forms(name: str) -> list[str]:
    return _coco_2014_forms(name) if _COCO_2014.fullmatch(_stem(name)) else _coco_2017_forms({"image": name})


def _path_forms(record: Mapping[str, Any]) -> list[str]:
    path = str(record["img_path"])
    return _coco_2014_forms(path) if _COCO_2014.fullmatch(_stem(path)) else _flickr30k_forms(path)


def _genome_forms(value: Any) -> list[str]:
    return [str(value), f"{value}.jpg", f"images/{value}.jpg"]


def _open_images_forms(value: str) -> list[str]:
    return [value, f"{value}.jpg"]


def _image_id_forms(record: Mapping[str, Any]) -> list[str]:
    value = str(record["image_id"])
    return _open_images_forms(value) if _OPEN_IMAGES.fullmatch(value) else _genome_forms(value)


def _nlvr2_forms(record: Mapping[str, Any]) -> list[list[str]]:
    pair, _, _ = record["identifier"].rpartition("-")
    if not pair:
        raise DataError(f"the identifier {record['identifier']!r} is none of NLVR2's, such as dev-850-0-1")
    split = pair.partition("-")[0]
    folder = f"images/train/{record['directory']}" if "directory" in record else split
    keys = [f"{pair}-img{side}" for side in (0, 1)]
    return [[key, f"{key}.png", f"{folder}/{key}.png"] for key in keys]


def _marvl_forms(record: Mapping[str, Any]) -> list[list[str]]:
    return [_marvl_image_forms(record, record[side]) for side in ("left_img", "right_img")]


def _marvl_image_forms(record: Mapping[str, Any], image: str) -> list[str]:
    """Concepts are written in composed or decomposed unicode, in the annotations as well as on disks."""
    language, stem, name = record["language"], _stem(image), _name(image)
    concept = image.rpartition("/")[0] or record.get("concept", "")
    spelled = dict.fromkeys([concept, *(unicodedata.normalize(form, concept) for form in ("NFC", "NFD"))])
    deep = [f"{language}/images/{concept}/{name}" for concept in spelled]
    return [f"{language}/{stem}", f"{language}/{name}", *deep, stem, name]


_RECORD_RULES: dict[str, Callable[[Mapping[str, Any]], list[list[str]]]] = {
    "Flikr30kID": lambda record: [_flickr30k_forms(record["Flikr30kID"])],  # so spelt in XVNLI
    "Flickr30K_ID": lambda record: [_flickr30k_forms(record["Flickr30K_ID"])],
    "left_img": _marvl_forms,
    "identifier": _nlvr2_forms,
    "wit_ix": lambda record: [[str(record["wit_ix"]), f"{record['wit_ix']}.jpg"]],
    "image/key": lambda record: [_open_images_forms(record["image/key"])],
    "img_path": lambda record: [_path_forms(record)],
    "image": lambda record: [_coco_2017_forms(record)],
    "file_name": lambda record: [_file_name_forms(record["file_name"])],
    "imageId": lambda record: [_genome_forms(record["imageId"])],
    "img_id": lambda record: [_genome_forms(record["img_id"])],
    "image_id": lambda record: [_image_id_forms(record)],
}
