"""Flickr30K."""

from __future__ import annotations

import re

from .dataset import DatasetSource


class Flickr30kSource(DatasetSource):
    """Pictures of Flickr30K; a picture's key is its number."""

    name = "flickr30k"
    title = "Flickr30K, also the Flickr half of xFlickr&CO, XVNLI and Multi30K"
    expects = "flickr30k-images/, flickr30k_images/flickr30k_images/, or the tar or zip it came in"
    key_form = "1007129816"
    key_rules = ("flickr30k",)
    options = {}  # there are no splits on disk
    examples = {
        "flickr30k-images/1007129816.jpg": "1007129816",
        "flickr30k-images/759822302.jpg": "759822302",
        "more.tar.gz/flickr30k-images/36979.jpg": "36979",
        "archive.zip/flickr30k_images/flickr30k_images/10002456.jpg": "10002456",
    }
    counts = {"all": 31783}
    dataset = "flickr30k"
    keys = re.compile(r"[1-9]\d{4,9}")
    fields = ("Flikr30kID", "Flickr30K_ID", "img_path")
