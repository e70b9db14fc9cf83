"""Small pictures for the report of a job, each a JPEG inside the page: samples with regions, and failed inputs.

What is shown was read by the job before and is read by the same rules, with tighter limits, and made anew from pixels.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cache import RegionStore
from extractor.draw import draw_regions
from extractor.images import DecodedImage, DecodePolicy, ImageError, decode, pixel_count
from extractor.view import vocabularies

from .report_samples import Samples
from .sources import Item

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_SECONDS = 5.0  # for all pictures of a report
MOST_PIXELS = 32_000_000
REGIONS_DRAWN = 12
SAMPLE_SIDE, THUMBNAIL_SIDE = 640, 200
NEVER_OPENED = ("worker_crash", "timeout", "out_of_memory")  # what did that once may do it again


@dataclass(frozen=True)
class Picture:
    """`uri` is the whole JPEG; `caption` says what is drawn."""

    key: str
    uri: str
    caption: str = ""


class PictureMaker:
    """Makes the pictures of one report, until the time for them is used up.

    Args:
        store: what the job wrote.
        samples: the inputs to show.
    """

    def __init__(self, store: RegionStore, samples: Samples, clock: Callable[[], float] = time.monotonic):
        self._store, self._samples, self._clock = store, samples, clock
        self._end = clock() + MOST_SECONDS
        choices = store.manifest.fingerprint or {}
        policy = DecodePolicy(**{f.name: choices[f.name] for f in fields(DecodePolicy) if f.name in choices})
        self._policy = replace(policy, max_pixels=min(policy.max_pixels, MOST_PIXELS))

    def samples(self) -> Iterator[Picture]:
        """Inputs with their regions, ordered by key; those that cannot be shown any more are left out."""
        for item in sorted(self._samples.records, key=lambda item: item.key):
            if picture := self._attempt(self._drawn, item):
                yield picture

    def thumbnail(self, item: Item, kind: str) -> Picture | None:
        """A failed input; None if there is nothing to see of it."""
        return None if kind in NEVER_OPENED else self._attempt(self._plain, item)

    def _attempt(self, make: Callable[[Item], Picture | None], item: Item) -> Picture | None:
        if self._clock() > self._end:
            return None
        try:
            return make(item)
        except Exception:  # no picture is a reason to have no report
            return None

    def _drawn(self, item: Item) -> Picture | None:
        regions = self._store[item.key]
        image = self._decode(item, self._policy)
        if None not in (regions.source_digest, image.source_digest) and regions.source_digest != image.source_digest:
            return None
        drawing = draw_regions(image.rgb, regions, *vocabularies(self._store), max_regions=REGIONS_DRAWN)
        count, shown = regions.num_regions, min(regions.num_regions, REGIONS_DRAWN)
        caption = f"{count} region{'' if count == 1 else 's'}" + (f", the first {shown} drawn" if shown < count else "")
        return Picture(item.key, _jpeg(drawing, SAMPLE_SIDE), f"{caption}; {image.width} × {image.height} pixels")

    def _plain(self, item: Item) -> Picture:
        from PIL import Image

        image = self._decode(item, replace(self._policy, truncated="keep"))
        return Picture(item.key, _jpeg(Image.fromarray(image.rgb), THUMBNAIL_SIDE))

    def _decode(self, item: Item, policy: DecodePolicy) -> DecodedImage:
        data: Any = item.locator.read(item.key, policy)
        if pixel_count(data) > policy.max_pixels:
            raise ImageError(item.key, "too_large", "more pixels than a report opens")
        return decode(data, item.key, policy)


def _jpeg(picture: Image, side: int) -> str:
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.convert("RGB").save(file, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
