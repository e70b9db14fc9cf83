"""Drawn scenes: flat shapes with a colour and a texture over a soft background, and what each of them is.

They are what the `demo` detector is trained and judged on, and what the demo extracts. A scene depends on
(seed, index) alone, so any process can draw any of them in any order. Boxes are `x1, y1, x2, y2` in pixels,
continuous, origin at the top-left corner of the image.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

COLORS = {
    "red": (214, 36, 40),
    "green": (40, 158, 62),
    "blue": (38, 84, 214),
    "yellow": (244, 214, 36),
    "purple": (142, 50, 176),
    "orange": (242, 128, 24),
    "black": (24, 24, 28),
    "white": (248, 248, 246),
}
TEXTURES = ("plain", "striped", "dotted", "checkered")
ATTRIBUTES = (*COLORS, *TEXTURES)
IMAGE_SIZES = ((256, 320), (256, 384), (240, 320), (320, 256), (288, 288), (272, 340))  # height, width
HELD_OUT_SEED = 1_000_003  # the series that nothing is trained on

MIN_VISIBLE = 0.5  # share of an object that later ones leave to be seen
MAX_IOU = 0.4  # of two boxes, so that suppression at 0.5 can keep both
SUPERSAMPLING = 4


@dataclass(frozen=True)
class _Patch:
    """Where an object lies: its coverage f32 [h,w] of the window whose top-left pixel is (left, top)."""

    left: int
    top: int
    coverage: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        return self.coverage > 0.5

    def window(self, image: np.ndarray) -> np.ndarray:
        """The part of the image the patch lies on, as a view."""
        height, width = self.coverage.shape
        return image[self.top : self.top + height, self.left : self.left + width]


def _arc(start: float, stop: float, radius: float = 1.0, centre: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Points on a circle between two angles in degrees, [48,2]."""
    angles = np.radians(np.linspace(start, stop, 48))
    return np.stack([np.cos(angles), np.sin(angles)], 1) * radius + centre


def _regular(corners: int, inner: float | None = None) -> np.ndarray:
    """A regular polygon pointing up; with `inner`, the star whose inner corners lie at that radius."""
    count = corners if inner is None else 2 * corners
    angles = np.arange(count) * (2 * np.pi / count) - np.pi / 2
    radii = np.ones(count) if inner is None else np.where(np.arange(count) % 2, inner, 1.0)
    return np.stack([np.cos(angles), np.sin(angles)], 1) * radii[:, None]


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([x / 16.5, (y - 2.5) / 16.5], 1)


def _corners(*points: tuple[float, float]) -> np.ndarray:
    return np.array(points, np.float64)


_CROSS = _corners(
    (-0.3, -0.9), (0.3, -0.9), (0.3, -0.3), (0.9, -0.3), (0.9, 0.3), (0.3, 0.3),
    (0.3, 0.9), (-0.3, 0.9), (-0.3, 0.3), (-0.9, 0.3), (-0.9, -0.3), (-0.3, -0.3),
)  # fmt: skip
_ARROW = _corners((1, 0), (0.15, -0.75), (0.15, -0.27), (-1, -0.27), (-1, 0.27), (0.15, 0.27), (0.15, 0.75))
_BOLT = _corners((0.3, -1), (-0.6, 0.15), (-0.08, 0.15), (-0.3, 1), (0.6, -0.25), (0.08, -0.25))
_CRESCENT_TIP = np.degrees(np.arccos(0.5))  # outer circle of radius 1 meets the bite of radius 0.87 around (0.5, 0)

# Outlines in a unit frame (y down, about one unit around the centre), filled by the even-odd rule: two outlines
# make a hole. The shapes were chosen to stay distinct when they are two cells of a stride-16 map wide.
SHAPES: dict[str, tuple[np.ndarray, ...]] = {
    "circle": (_arc(0, 352.5, 0.92),),
    "square": (_corners((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),),
    "triangle": (_regular(3),),
    "star": (_regular(5, 0.42),),
    "cross": (_CROSS,),
    "ring": (_arc(0, 352.5), _arc(0, 352.5, 0.5)),
    "heart": (_heart(),),
    "arrow": (_ARROW,),
    "crescent": (
        np.concatenate([_arc(_CRESCENT_TIP, 360 - _CRESCENT_TIP), _arc(-90, -270, 0.866, (0.5, 0))]) + (0.25, 0),
    ),
    "diamond": (_corners((0, -1), (0.56, 0), (0, 1), (-0.56, 0)),),
    "bolt": (_BOLT,),
    "capsule": (np.concatenate([_arc(-90, 90, 0.4, (0.6, 0)), _arc(90, 270, 0.4, (-0.6, 0))]),),
}
CLASSES = tuple(SHAPES)


def make_scene(seed: int, index: int, size: tuple[int, int] | None = None) -> tuple[np.ndarray, dict]:
    """Draw scene `index` of the endless series `seed`: an RGB uint8 [H,W,3] image and its scene graph.

    `size` (height, width) overrides the scene's own size, for batches of equal shapes; everything else is drawn
    anew for that size. The graph holds `image`, `width`, `height`, `objects` and `relations`. An object has `id`
    (its place in the list and in painting order: a higher one lies in front), `class`, `attributes` [colour,
    texture], `size` ("small" or "large"), `box` (tight around the whole shape, its hidden part included) and
    `visible` (the share of its area that shows). A relation is [subject id, name, object id], see `relations`.
    """
    rng = np.random.Generator(np.random.PCG64([seed, index]))
    own_size = IMAGE_SIZES[rng.integers(len(IMAGE_SIZES))]
    height, width = own_size if size is None else size
    canvas = _background(rng, height, width)
    owner = np.full((height, width), -1, np.int16)  # the foremost object of each pixel
    objects: list[dict] = []
    areas: list[int] = []
    covered: list[list[int]] = []  # per object, those it was painted over
    for _ in range(int(rng.integers(3, 9))):
        for _attempt in range(12):
            placed = _place(rng, objects, owner, areas)
            if placed is not None:
                obj, patch, paint = placed
                window, inside, ground = patch.window(owner), patch.inside, patch.window(canvas)
                ground += patch.coverage[..., None] * (paint - ground)
                covered.append([int(below) for below in np.unique(window[inside]) if below >= 0])
                window[inside] = len(objects)
                objects.append({"id": len(objects), **obj})
                areas.append(int(inside.sum()))
                break
    for obj, area in zip(objects, areas, strict=True):
        obj["visible"] = round(int((owner == obj["id"]).sum()) / area, 3)
    scene = {"image": f"{index:06d}.jpg", "width": width, "height": height, "objects": objects}
    scene["relations"] = relations(objects, covered, width, height)
    return _expose(rng, canvas), scene


def relations(objects: Sequence[dict], covered: Sequence[Sequence[int]], width: int, height: int) -> list[list]:
    """The relations that hold, each once: [a, "left_of", b], [a, "above", b], [a, "in_front_of", b].

    a is left of b when its centre is further left by more than an eighth of the image's width, above b likewise
    with its height. a is in front of b when it covers a part of b that showed until a was painted.
    """
    found: list[list] = []
    for a in objects:
        for b in objects:
            ax1, ay1, ax2, ay2 = a["box"]
            bx1, by1, bx2, by2 = b["box"]
            if (bx1 + bx2) / 2 - (ax1 + ax2) / 2 > width / 8:
                found.append([a["id"], "left_of", b["id"]])
            if (by1 + by2) / 2 - (ay1 + ay2) / 2 > height / 8:
                found.append([a["id"], "above", b["id"]])
            if b["id"] in covered[a["id"]]:
                found.append([a["id"], "in_front_of", b["id"]])
    return found


def _background(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Two muted tones of middle brightness in a gradient with soft blotches: f32 [H,W,3] in 0..255."""
    level = rng.uniform(95, 185)
    tones = np.clip(level + rng.uniform(-28, 28, (2, 1)) + rng.uniform(-16, 16, (2, 3)), 0, 255)
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    ramp = (x / width - 0.5) * np.float32(np.cos(angle)) + (y / height - 0.5) * np.float32(np.sin(angle)) + 0.5
    cells = int(rng.integers(3, 9))
    blotches = cv2.resize(
        rng.standard_normal((cells, cells + 1), np.float32), (width, height), interpolation=cv2.INTER_CUBIC
    )
    ramp = np.clip(ramp + np.float32(rng.uniform(0, 0.35)) * blotches, 0, 1)[..., None]
    first, second = tones.astype(np.float32)
    canvas = first + ramp * (second - first)
    if rng.random() < 0.4:  # a coarse grain, like paper or plaster
        grain = rng.standard_normal((height // 2, width // 2), np.float32) * np.float32(rng.uniform(3, 9))
        canvas += cv2.resize(grain, (width, height), interpolation=cv2.INTER_LINEAR)[..., None]
    return canvas


def _place(
    rng: np.random.Generator, objects: Sequence[dict], owner: np.ndarray, areas: Sequence[int]
) -> tuple[dict, _Patch, np.ndarray] | None:
    """One object at a random place with its colours, or None where it would hide an earlier one or share its box."""
    height, width = owner.shape
    label = "large" if rng.random() < 0.5 else "small"
    diameter = min(height, width) * (rng.uniform(0.28, 0.46) if label == "large" else rng.uniform(0.13, 0.2))
    name = CLASSES[rng.integers(len(CLASSES))]
    color = list(COLORS)[rng.integers(len(COLORS))]
    texture = TEXTURES[rng.integers(len(TEXTURES))]
    tilt = np.radians(rng.uniform(-30, 30) + (90 * rng.integers(4) if name == "arrow" else 0))
    rotation = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
    outlines = [points @ rotation.T * (diameter / 2) for points in SHAPES[name]]
    low, high = outlines[0].min(0), outlines[0].max(0)
    centre = 2 - low + rng.random(2) * (np.array([width, height]) - 4 - (high - low))
    box = np.concatenate([low + centre, high + centre])
    if any(_iou(box, other["box"]) > MAX_IOU for other in objects):
        return None

    corner = np.floor(box[:2]).astype(int) - 1
    extent = np.ceil(box[2:]).astype(int) + 1 - corner
    patch = _Patch(int(corner[0]), int(corner[1]), _coverage([p + centre - corner for p in outlines], extent))
    lost = patch.window(owner)[patch.inside]
    for other, area in zip(objects, areas, strict=True):
        if int((owner == other["id"]).sum()) - int((lost == other["id"]).sum()) < MIN_VISIBLE * area:
            return None
    obj = {
        "class": name,
        "attributes": [color, texture],
        "size": label,
        "box": [round(float(v), 2) for v in box],
        "visible": 1.0,
    }
    return obj, patch, _paint(rng, color, texture, tilt, diameter, extent, centre - corner)


def _coverage(outlines: Sequence[np.ndarray], extent: np.ndarray) -> np.ndarray:
    """Anti-aliased coverage f32 [h,w] of the area inside the outlines (window pixels, even-odd rule)."""
    mask = np.zeros(extent[::-1] * SUPERSAMPLING, np.uint8)
    fine = [np.round((points * SUPERSAMPLING - 0.5) * 16).astype(np.int32) for points in outlines]
    cv2.fillPoly(mask, fine, 255, lineType=cv2.LINE_8, shift=4)
    return cv2.resize(mask, extent.tolist(), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def _paint(rng, color: str, texture: str, tilt: float, diameter: float, extent: np.ndarray, centre: np.ndarray):
    """The colours of the window's pixels, f32 [h,w,3]: a base tone, a second tone in the texture, a soft light."""
    base = np.array(COLORS[color], np.float32) + rng.uniform(-12, 12, 3).astype(np.float32)
    second = base + 0.5 * (255 - base) if color == "black" else 0.45 * base
    y, x = np.mgrid[0 : extent[1], 0 : extent[0]].astype(np.float32)
    x, y = x + 0.5 - np.float32(centre[0]), y + 0.5 - np.float32(centre[1])
    turn = tilt + (rng.integers(4) * np.pi / 4 if texture == "striped" else 0)
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    period = float(np.clip(diameter * rng.uniform(0.2, 0.27), 8, 18))
    wave = 2 * np.pi / period
    if texture == "striped":
        weight = 0.5 + np.sin(u * wave) * period / 4
    elif texture == "checkered":
        weight = 0.5 + np.sin(u * wave) * np.sin(v * wave) * period / 3
    elif texture == "dotted":
        du, dv = (u + period / 2) % period - period / 2, (v + period / 2) % period - period / 2
        weight = 0.5 + 0.3 * period - np.hypot(du, dv)
    else:
        weight = np.zeros_like(u)
    weight = np.clip(weight, 0, 1)[..., None].astype(np.float32)
    direction = rng.uniform(0, 2 * np.pi)
    light = 1 + rng.uniform(0, 0.12) * (x * np.cos(direction) + y * np.sin(direction)) / (diameter / 2)
    return (base * (1 - weight) + second * weight) * light[..., None].astype(np.float32)


def _expose(rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """Light, tint and sensor noise of the whole picture, then uint8."""
    height, width = canvas.shape[:2]
    gain = rng.uniform(0.82, 1.1) * rng.uniform(0.95, 1.05, 3)
    fall = 1 + rng.uniform(-0.12, 0.12) * np.linspace(-1, 1, width)[None, :, None]
    canvas *= (gain * fall).astype(np.float32)
    canvas += rng.standard_normal((height, width, 3), np.float32) * np.float32(rng.uniform(0, 7))
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def _iou(a: Sequence[float], b: Sequence[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def iter_scenes(count: int, seed: int = 0, start: int = 0) -> Iterator[tuple[np.ndarray, dict]]:
    """Scenes `start` to `start + count - 1` of the series, drawn one at a time."""
    return (make_scene(seed, index) for index in range(start, start + count))


def write_scenes(
    out_dir: str | Path, count: int, seed: int = 0, progress: Callable[[int], None] = lambda done: None
) -> Path:
    """Write scenes as `000000.jpg`, ... and one JSON line each in `scenes.jsonl`, whose path is returned.

    One scene is in memory at a time; `progress` is called with how many are written. Raises ValueError when `count` is
    below one.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    listing = out / "scenes.jsonl"
    with listing.open("w", encoding="utf-8") as lines:
        for done, (image, scene) in enumerate(iter_scenes(count, seed), 1):
            _, encoded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 93])
            (out / scene["image"]).write_bytes(encoded.tobytes())
            lines.write(json.dumps(scene) + "\n")
            progress(done)
    return listing


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m extractor.scenes", description="Draw labelled scenes.")
    parser.add_argument("out", help="folder for the images and scenes.jsonl")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(write_scenes(options.out, options.count, options.seed))


if __name__ == "__main__":
    main()
