"""COCO results: a JSON list of {image_id, category_id, bbox: [x, y, width, height], score}, one entry a region."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..dataset_keys import coco_image_id
from ..regions import Regions
from .base import BadRow, Format, Notes, Vocabularies

# The 80 classes of COCO count up to 90: these numbers were given to no class.
_UNUSED = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_COCO_IDS = [number for number in range(1, 91) if number not in _UNUSED]
_COCO_ENDS = ("person", "toothbrush")


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes):
    classes = vocabularies.get("classes") or ()
    is_coco = len(classes) == len(_COCO_IDS) and (classes[0], classes[-1]) == _COCO_ENDS
    if is_coco:
        notes.remark("the classes are COCO's 80: category_id is COCO's own number")
    with open(path, "w", encoding="utf-8") as file:
        file.write("[")
        separator = "\n"

        def put(regions: Regions) -> None:
            nonlocal separator
            scores = regions.scores if regions.scores is not None else regions.class_probs
            if regions.class_ids is None or scores is None:
                raise BadRow("the layout needs class_ids, and scores or class_probs", "unsupported")
            ids = regions.class_ids.tolist()
            if is_coco and not all(0 <= number < len(_COCO_IDS) for number in ids):
                raise BadRow("there is a class id that is none of the 80 classes", "value_range")
            numbers = [_COCO_IDS[number] for number in ids] if is_coco else [number + 1 for number in ids]
            boxes = regions.boxes.astype(np.float64)  # differences of float32 are exact there, or nearly
            boxes[:, 2:] -= boxes[:, :2]
            image = coco_image_id(regions.key)
            for number, box, score in zip(numbers, boxes.tolist(), scores.tolist(), strict=True):
                entry = {
                    "image_id": regions.key if image is None else image,
                    "category_id": number,
                    "bbox": box,
                    "score": score,
                }
                file.write(separator + json.dumps(entry))
                separator = ",\n"

        yield put
        file.write("\n]\n")


FORMAT = Format(
    "coco-results",
    "JSON of detections, as pycocotools reads them",
    "category_id is class_id + 1, as 0 is background there; COCO's own numbers when the names are COCO's 80. image_id "
    "is the number in a key of COCO 2014 or 2017, any other key as it is",
    frozenset({"boxes", "class_ids", "scores"}),
    lambda path: False,  # it has no features, and is not read
    write=write,
    suffixes=(".json",),
    features_as="left out",
)
