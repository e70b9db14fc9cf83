"""Pictures of regions: boxes with class and attribute names, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cache import DataError, Regions

# Okabe and Ito's colours, told apart under every common colour blindness, then the same darkened.
COLORS = (
    "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    "#8A5F00", "#1F6E9E", "#005F45", "#90882A", "#003F63", "#803800", "#7A4864",
)  # fmt: skip
SMALLEST, LARGEST = 800, 1280  # longest side of a drawing, in pixels: labels stay legible and files stay small

Rectangle = tuple[float, float, float, float]


@dataclass(frozen=True)
class Row:
    """One region in words. `rank` counts from 1; parts that the record does not have are "" or None."""

    rank: int
    box: Rectangle
    color: str
    class_name: str
    class_prob: float | None
    attribute: str
    attribute_prob: float | None
    score: float | None

    @property
    def text(self) -> str:
        """Label of the region, such as `3 circle 0.97 · red 0.88`."""
        name = _with_number(self.class_name, self.class_prob)
        attribute = _with_number(self.attribute, self.attribute_prob)
        if not name and self.score is not None:
            name = f"{self.score:.2f}"
        return f"{self.rank} {' · '.join(part for part in (name, attribute) if part)}".rstrip()


def describe(regions: Regions, classes: Sequence[str], attributes: Sequence[str]) -> list[Row]:
    """Every region in words, in the record's order; ids outside a vocabulary are shown as numbers."""
    rows = []
    for i, box in enumerate(regions.boxes.tolist()):
        class_id = _number(regions.class_ids, i)
        rows.append(
            Row(
                rank=i + 1,
                box=tuple(box),
                color=COLORS[int(class_id if class_id is not None else i) % len(COLORS)],
                class_name=_name(class_id, classes, "class"),
                class_prob=_number(regions.class_probs, i),
                attribute=_name(_number(regions.attr_ids, i), attributes, "attribute"),
                attribute_prob=_number(regions.attr_probs, i),
                score=_number(regions.scores, i),
            )
        )
    return rows


def draw_regions(
    rgb: np.ndarray,
    regions: Regions,
    classes: Sequence[str] = (),
    attributes: Sequence[str] = (),
    *,
    max_regions: int | None = None,
    min_score: float = 0.0,
) -> Image.Image:
    """The image with its regions drawn on it, first region on top.

    Small images are enlarged and very large ones reduced, so that the longest side has 800 to 1280 pixels. A label
    that finds no free place shrinks to its rank.

    Args:
        rgb: uint8 [H,W,3], as decoded under the store's policy, so that H and W are the record's.
        regions: boxes in pixels of that image.
        classes, attributes: the store's vocabularies.
        max_regions: draw the first so many; default all.
        min_score: leave out regions with a lower score; those without scores are all drawn.

    Raises:
        DataError: the image has another size than the record says.
    """
    height, width = rgb.shape[:2]
    if (width, height) != (regions.width, regions.height):
        raise DataError(
            f"{regions.key!r}: the image has {width}x{height} pixels but the record was made from one with "
            f"{regions.width}x{regions.height}; draw it on the image it was extracted from"
        )
    scale = min(max(1.0, SMALLEST / max(width, height)), LARGEST / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    picture = Image.fromarray(rgb)
    if size != picture.size:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(picture, "RGBA")
    line = max(2, round(max(size) / 400))
    rows = [row for row in describe(regions, classes, attributes) if row.score is None or row.score >= min_score]
    rows = rows[:max_regions]
    frames = [_scaled(row.box, size[0] / width, size[1] / height, size) for row in rows]
    for row, frame in reversed(list(zip(rows, frames, strict=True))):
        draw.rectangle(_grown(frame, 1), outline=(0, 0, 0, 110), width=line + 2)  # dark rim: visible on any ground
        draw.rectangle(frame, outline=row.color, width=line)
    _draw_labels(draw, rows, frames, size)
    return picture


def _draw_labels(draw: ImageDraw.ImageDraw, rows: list[Row], frames: list[Rectangle], size: tuple[int, int]) -> None:
    font = ImageFont.load_default(max(12, round(max(size) / 46)))
    pad = max(2, round(max(size) / 320))
    placed: list[Rectangle] = []
    for row, frame in zip(rows, frames, strict=True):
        for text in (row.text, str(row.rank)):
            left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
            spot = _free_spot(frame, right - left + 2 * pad, bottom - top + 2 * pad, size, placed)
            if spot is not None:
                placed.append(spot)
                draw.rounded_rectangle(spot, radius=pad, fill=row.color, outline=(0, 0, 0, 110))
                draw.text((spot[0] + pad - left, spot[1] + pad - top), text, font=font, fill=_ink(row.color))
                break


def _free_spot(
    frame: Rectangle, width: float, height: float, size: tuple[int, int], placed: list[Rectangle]
) -> Rectangle | None:
    """Where a label goes: on the box's top edge, else its bottom edge, inside, or at the right; None when all taken."""
    left, top, right, bottom = frame
    if width > size[0] or height > size[1]:
        return None
    for x, y in (
        (left, top - height), (left, bottom), (left, top), (right - width, top - height), (right - width, bottom),
        (right - width, top), (left, bottom - height), (right - width, bottom - height),
    ):  # fmt: skip
        x, y = min(max(x, 0), size[0] - 1 - width), min(max(y, 0), size[1] - 1 - height)
        spot = (x, y, x + width, y + height)
        if x >= 0 and y >= 0 and not any(_overlap(spot, other) for other in placed):
            return spot
    return None


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _scaled(box: Rectangle, x: float, y: float, size: tuple[int, int]) -> Rectangle:
    """A box in pixels of the drawing, inside it."""
    return (
        min(max(box[0] * x, 0), size[0] - 1),
        min(max(box[1] * y, 0), size[1] - 1),
        min(max(box[2] * x, 0), size[0] - 1),
        min(max(box[3] * y, 0), size[1] - 1),
    )


def _grown(frame: Rectangle, by: int) -> Rectangle:
    return frame[0] - by, frame[1] - by, frame[2] + by, frame[3] + by


def _ink(color: str) -> str:
    """Black or white, whichever reads better on the colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "white"


def _number(values: np.ndarray | None, i: int) -> float | None:
    return None if values is None else values[i].item()


def _name(index: float | None, names: Sequence[str], kind: str) -> str:
    if index is None:
        return ""
    return names[int(index)] if 0 <= index < len(names) else f"{kind} {int(index)}"


def _with_number(name: str, probability: float | None) -> str:
    return f"{name} {probability:.2f}" if name and probability is not None else name
