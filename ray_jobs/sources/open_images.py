"""Open Images, as far as XM3600 and MaXM take their pictures from there."""

from __future__ import annotations

import re

from .dataset import DatasetSource


class OpenImagesSource(DatasetSource):
    """Pictures named by 16 hexadecimal digits: XM3600 (the count), MaXM, or any part of Open Images.

    The pictures are upright once their EXIF orientation is applied, which is the default. The column `Rotation` of
    XM3600's attributions is about the originals and must not be applied again: the sizes published with the pictures
    are those of the turned ones.
    """

    name = "open_images"
    title = "Open Images: XM3600, MaXM"
    expects = "images/ or images.tgz of XM3600, or train_0.tar.gz and so on"
    key_form = "d89a4889331ce042"
    key_rules = ("open_images",)
    options = {}  # there are no splits on disk
    examples = {
        "images/d89a4889331ce042.jpg": "d89a4889331ce042",
        "train_0.tar.gz/train_0/000411001ff7dd4f.jpg": "000411001ff7dd4f",
        "train_0.tar.gz/train_0/0004886b7d043cfd.jpg": "0004886b7d043cfd",
    }
    counts = {"xm3600": 3600}
    dataset = "open_images"
    keys = re.compile(r"[0-9a-f]{16}")
    fields = ("image/key", "image_id")
