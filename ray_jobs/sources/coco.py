"""COCO, in the names of 2014 and of 2017: the same pictures, other keys."""

from __future__ import annotations

import re

from .dataset import DatasetSource


class CocoSource(DatasetSource):
    """Pictures of COCO. Those of 2017 tell their split by their folder only; merged folders are the part `2017`."""

    name = "coco"
    title = "COCO 2014, 2015 and 2017"
    expects = "train2014/, val2014/, train2017/, val2017/, ..., or train2014.zip and so on"
    key_form = "COCO_val2014_000000520430 (2014), 000000050403 (2017)"
    key_rules = ("coco",)
    examples = {
        "val2014/COCO_val2014_000000520430.jpg": "COCO_val2014_000000520430",
        "train2014.zip/train2014/COCO_train2014_000000117071.jpg": "COCO_train2014_000000117071",
        "train2014.zip/train2014/COCO_train2014_000000000009.jpg": "COCO_train2014_000000000009",
        "val2017.zip/val2017/000000000139.jpg": "000000000139",
        "trainval2017/000000050403.jpg": "000000050403",
    }
    counts = {
        "train2014": 82783,
        "val2014": 40504,
        "test2014": 40775,
        "test2015": 81434,
        "train2017": 118287,
        "val2017": 5000,
        "test2017": 40670,
        "unlabeled2017": 123403,
        "2017": None,
    }
    dataset = "coco"
    keys = re.compile(r"COCO_(?:train|val|test)\d{4}_\d{12}|\d{12}")
    fields = ("img_path", "image", "file_name")

    def part(self, relative: str) -> str | None:
        folder, _, name = relative.rpartition("/")
        if name.startswith("COCO_"):
            named = name.split("_")[1]
            return named if named in self.counts else None
        folder = folder.rpartition("/")[2]
        return folder if folder in self.counts else "2017"
