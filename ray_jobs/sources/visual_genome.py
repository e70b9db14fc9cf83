"""Visual Genome, and GQA, which numbers its pictures in the same way."""

from __future__ import annotations

import re

from .dataset import DatasetSource


class VisualGenomeSource(DatasetSource):
    """Pictures of Visual Genome (the part `vg`, in folders VG_100K and VG_100K_2) or of GQA (`gqa`, everywhere else).

    GQA contains the pictures of Visual Genome under the same numbers: give one of the two, or choose by `split`.
    """

    name = "visual_genome"
    title = "Visual Genome, and GQA"
    expects = "VG_100K/ and VG_100K_2/ (images.zip, images2.zip), or GQA's images/ (images.zip)"
    key_form = "2370799, of GQA's test pictures n161313"
    key_rules = ("visual_genome",)
    examples = {
        "VG_100K/2370799.jpg": "2370799",
        "VG_100K_2/2412112.jpg": "2412112",
        "gqa/images.zip/images/n161313.jpg": "n161313",
        "gqa/images.zip/images/2354786.jpg": "2354786",
    }
    counts = {"vg": 108077, "gqa": 148854}
    unpacked = {"images": "VG_100K", "images2": "VG_100K_2"}
    dataset = "visual_genome"
    keys = re.compile(r"n?[1-9]\d{0,6}")
    fields = ("imageId", "img_id", "image_id")

    def part(self, relative: str) -> str | None:
        return "vg" if relative.split("/")[-2:-1] in (["VG_100K"], ["VG_100K_2"]) else self._elsewhere(relative)

    def _elsewhere(self, relative: str) -> str:
        inside = self.path.rstrip("/").rpartition("/")[2] in ("VG_100K", "VG_100K_2")
        return "vg" if inside and "/" not in relative else "gqa"
