"""The scenes must be reproducible anywhere and say the truth about themselves: everything downstream learns from it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from extractor.presets import DEMO
from extractor.scenes import (
    ATTRIBUTES,
    CLASSES,
    COLORS,
    IMAGE_SIZES,
    MAX_IOU,
    SHAPES,
    TEXTURES,
    make_scene,
    write_scenes,
)


@pytest.fixture(scope="module")
def scenes():
    return [make_scene(11, index) for index in range(40)]


def test_a_scene_depends_on_seed_and_index_alone():
    forward = [make_scene(3, index) for index in (0, 1, 2)]
    backward = [make_scene(3, index) for index in (2, 1, 0)][::-1]
    for (image, scene), (again, scene_again) in zip(forward, backward, strict=True):
        assert np.array_equal(image, again) and scene == scene_again
    assert not np.array_equal(make_scene(4, 0)[0], make_scene(3, 0)[0])


def test_the_image_fits_the_graph(scenes):
    for image, scene in scenes:
        assert image.dtype == np.uint8 and image.shape == (scene["height"], scene["width"], 3)
        assert image.shape[:2] in IMAGE_SIZES
        assert 1 <= len(scene["objects"]) <= 8
        assert json.loads(json.dumps(scene)) == scene
    assert make_scene(3, 0, size=(200, 240))[0].shape == (200, 240, 3)


def test_objects_lie_inside_show_enough_and_can_be_told_apart_by_box(scenes):
    for _, scene in scenes:
        for place, obj in enumerate(scene["objects"]):
            x1, y1, x2, y2 = obj["box"]
            assert 0 <= x1 < x2 <= scene["width"] and 0 <= y1 < y2 <= scene["height"]
            assert obj["id"] == place and obj["class"] in CLASSES
            assert obj["attributes"][0] in COLORS and obj["attributes"][1] in TEXTURES
            assert 0.45 <= obj["visible"] <= 1
            extent = max(x2 - x1, y2 - y1) / min(scene["width"], scene["height"])
            assert (extent > 0.23) == (obj["size"] == "large")
            for other in scene["objects"][:place]:
                assert _iou(obj["box"], other["box"]) <= MAX_IOU + 1e-3


def test_the_box_is_tight_and_the_colour_is_the_named_one(scenes):
    checked = 0
    for image, scene in scenes:
        for obj in scene["objects"]:
            if obj["visible"] < 1 or obj["attributes"] != ["red", "plain"]:
                continue
            checked += 1
            x1, y1, x2, y2 = obj["box"]
            top, left = int(y1) - 2, int(x1) - 2
            patch = image[max(top, 0) : int(y2) + 3, max(left, 0) : int(x2) + 3].astype(int)
            rows, columns = np.nonzero((patch[..., 0] > 120) & (patch[..., 1] < 90) & (patch[..., 2] < 90))
            assert abs(rows.min() + max(top, 0) - y1) < 4 and abs(columns.max() + 1 + max(left, 0) - x2) < 4
    assert checked


def test_relations_follow_from_boxes_and_painting_order(scenes):
    seen = set()
    for _, scene in scenes:
        objects = scene["objects"]
        centre = [((o["box"][0] + o["box"][2]) / 2, (o["box"][1] + o["box"][3]) / 2) for o in objects]
        stated = {tuple(relation) for relation in scene["relations"]}
        assert len(stated) == len(scene["relations"])
        seen |= {name for _, name, _ in stated}
        for a in range(len(objects)):
            for b in range(len(objects)):
                left = centre[b][0] - centre[a][0] > scene["width"] / 8
                above = centre[b][1] - centre[a][1] > scene["height"] / 8
                assert ((a, "left_of", b) in stated) == left and ((a, "above", b) in stated) == above
                if (a, "in_front_of", b) in stated:
                    assert a > b and objects[b]["visible"] < 1 and _iou(objects[a]["box"], objects[b]["box"]) > 0
        for obj in objects:
            if obj["visible"] < 1:
                assert any(name == "in_front_of" and b == obj["id"] for _, name, b in stated)
    assert seen == {"left_of", "above", "in_front_of"}


def test_every_shape_colour_and_texture_is_drawn():
    objects = [obj for index in range(60) for obj in make_scene(5, index)[1]["objects"]]
    assert {obj["class"] for obj in objects} == set(SHAPES)
    assert {name for obj in objects for name in obj["attributes"]} == set(ATTRIBUTES)


def test_the_preset_names_what_the_scenes_draw():
    assert DEMO.classes == CLASSES and DEMO.attributes == ATTRIBUTES
    assert DEMO.architecture.num_classes == len(CLASSES) and DEMO.architecture.num_attributes == len(ATTRIBUTES)


def test_written_scenes_can_be_read_back(tmp_path):
    listing = write_scenes(tmp_path / "scenes", 3, seed=9)
    lines = [json.loads(line) for line in listing.read_text().splitlines()]
    assert [line["image"] for line in lines] == ["000000.jpg", "000001.jpg", "000002.jpg"]
    for index, line in enumerate(lines):
        image, scene = make_scene(9, index)
        assert line == scene
        stored = np.asarray(Image.open(listing.parent / line["image"]).convert("RGB")).astype(int)
        assert np.abs(stored - image).mean() < 8  # lossy, but the same picture in the same channel order
    with pytest.raises(ValueError, match="at least 1"):
        write_scenes(tmp_path, 0)


def _iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)
