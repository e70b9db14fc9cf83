"""NLVR2."""

from __future__ import annotations

import re

from .dataset import DatasetSource


class Nlvr2Source(DatasetSource):
    """Pictures of NLVR2, two to an example; a name starts with its split."""

    name = "nlvr2"
    title = "NLVR2, the English training data of MaRVL"
    expects = "images/train/0/ to 99/, dev/, test1/, test2/, or the archives they came in"
    key_form = "dev-850-0-img0"
    key_rules = ("nlvr2",)
    examples = {
        "images/train/39/train-10171-0-img0.png": "train-10171-0-img0",
        "images/train/39/train-10171-0-img1.png": "train-10171-0-img1",
        "dev/dev-850-0-img0.png": "dev-850-0-img0",
        "test1_img.zip/test1/test1-0-1-img1.png": "test1-0-1-img1",
    }
    counts = {"train": None, "dev": 8102, "test1": 8082, "test2": None}
    dataset = "nlvr2"
    keys = re.compile(r"(?:train|dev|test1|test2)-\d+-\d+-img[01]")
    fields = ("identifier",)

    def part(self, relative: str) -> str | None:
        return relative.rpartition("/")[2].partition("-")[0]
