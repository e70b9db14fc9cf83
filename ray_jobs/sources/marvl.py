"""MaRVL: five languages, whose pictures have the same names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cache.dataset_keys import MARVL_LANGUAGES

from .dataset import DatasetSource
from .folder import Entry


class MarvlSource(DatasetSource):
    """Pictures of MaRVL; the language is a folder above the picture, and part of the key.

    The counts are of the pictures in the test sets; those of the few-shot sets (`39-n-5.jpg`) and further ones may be
    there as well. Folders of concepts are taken as the disk spells them, in composed or decomposed unicode.
    """

    name = "marvl"
    title = "MaRVL, zero-shot and few-shot pictures"
    expects = "marvl-images/<language>/images/<concept>/ and extra/, or <language>/all/; languages id, sw, ta, tr, zh"
    key_form = "sw/39-11"
    key_rules = ("marvl",)
    examples = {
        "marvl-images/sw/images/39-Panci/39-11.jpg": "sw/39-11",
        "marvl-images/id/images/39-Panci/39-11.jpg": "id/39-11",
        "marvl-images/tr/extra/80-Tu\u0308rk kahvesi/80-n-3.jpg": "tr/80-n-3",
        "marvl-images/zh.zip/images/1-\u9f99/1-0.jpg": "zh/1-0",
        "ta/all/5-2.jpg": "ta/5-2",
    }
    counts = {"id": 1091, "sw": 875, "ta": 923, "tr": 917, "zh": 1107}
    dataset = "marvl"
    keys = re.compile(rf"(?:{'|'.join(MARVL_LANGUAGES)})/\d+-(?:n-)?\d+")
    fields = ("left_img",)

    def part(self, relative: str) -> str | None:
        return next(folder for folder in reversed(relative.split("/")[:-1]) if folder in MARVL_LANGUAGES)

    def pictures(self) -> Iterator[Entry]:
        """Where no folder below the path tells the language, those above it do."""
        above = os.path.abspath(self.path)
        tells = _names_language(f"{above}/")
        for entry in super().pictures():
            hidden = tells and not _names_language(entry.relative)
            yield entry._replace(relative=f"{above}/{entry.relative}") if hidden else entry


def _names_language(path: str) -> bool:
    return not set(MARVL_LANGUAGES).isdisjoint(path.split("/")[:-1])
