"""Pictures of regions: what is drawn is where it belongs and stays readable."""

import numpy as np
import pytest

from cache import DataError, Regions
from extractor.draw import COLORS, LARGEST, SMALLEST, describe, draw_regions

CLASSES = ("circle", "square", "triangle")
ATTRIBUTES = ("red", "green")


def regions(boxes, width=200, height=100, **fields):
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    return Regions("key", width, height, boxes, np.zeros((len(boxes), 2), np.float32), **fields)


def grey(width=200, height=100):
    return np.full((height, width, 3), 128, np.uint8)


def color(index):
    return tuple(int(COLORS[index][i : i + 2], 16) for i in (1, 3, 5))


def test_box_is_drawn_in_the_color_of_its_class_and_where_it_is():
    found = regions([[50, 40, 150, 80]], class_ids=[2])
    picture = np.asarray(draw_regions(grey(), found, CLASSES))
    scale = SMALLEST / 200
    assert tuple(picture[round(60 * scale), round(50 * scale)]) == color(2)
    assert tuple(picture[round(60 * scale), round(150 * scale)]) == color(2)
    assert tuple(picture[round(80 * scale), round(120 * scale)]) == color(2)
    assert tuple(picture[round(60 * scale), round(100 * scale)]) == (128, 128, 128)  # inside
    assert tuple(picture[round(60 * scale), round(20 * scale)]) == (128, 128, 128)  # outside


def test_image_without_regions_is_only_scaled():
    picture = np.asarray(draw_regions(grey(), regions([])))
    assert picture.shape == (SMALLEST // 2, SMALLEST, 3)
    assert (picture == 128).all()


@pytest.mark.parametrize(
    "width, height", [(1, 1), (2, 1000), (1000, 2), (16, 16), (5000, 3000)], ids=lambda side: str(side)
)
def test_every_size_of_image_is_drawn_at_a_legible_size(width, height):
    found = regions([[0, 0, width, height]] * 3, width, height, class_ids=[0, 1, 2], class_probs=[0.9, 0.5, 0.1])
    picture = draw_regions(grey(width, height), found, CLASSES)
    assert SMALLEST <= max(picture.size) <= LARGEST


def test_label_of_a_box_in_the_corner_is_drawn_inside():
    found = regions([[195, 95, 200, 100]], class_ids=[1], class_probs=[0.5])
    picture = np.asarray(draw_regions(grey(), found, CLASSES))
    assert (picture == color(1)).all(-1).sum() > 500  # the lines of the box alone are 160 pixels


def test_crowded_labels_do_not_cover_each_other(monkeypatch):
    from PIL import ImageDraw

    spots = []
    draw = ImageDraw.ImageDraw.rounded_rectangle
    monkeypatch.setattr(
        ImageDraw.ImageDraw, "rounded_rectangle", lambda self, spot, **kw: (spots.append(spot), draw(self, spot, **kw))
    )
    found = regions([[60, 30, 120, 70]] * 40, class_ids=[0] * 40, class_probs=np.linspace(1, 0, 40))
    picture = draw_regions(grey(), found, CLASSES)
    assert len(spots) > 2
    for i, a in enumerate(spots):
        assert 0 <= a[0] <= a[2] <= picture.width and 0 <= a[1] <= a[3] <= picture.height
        for b in spots[:i]:
            assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]


def test_max_regions_keeps_the_first():
    found = regions([[10, 10, 40, 40], [100, 50, 150, 90]], class_ids=[0, 1])
    picture = np.asarray(draw_regions(grey(), found, CLASSES, max_regions=1))
    assert (picture == color(0)).all(-1).any()
    assert not (picture == color(1)).all(-1).any()


def test_min_score_leaves_out_weaker_regions():
    boxes, names = [[10, 10, 40, 40], [100, 50, 150, 90]], {"class_ids": [0, 1]}
    picture = np.asarray(draw_regions(grey(), regions(boxes, scores=[0.9, 0.1], **names), CLASSES, min_score=0.5))
    assert (picture == color(0)).all(-1).any()
    assert not (picture == color(1)).all(-1).any()
    picture = np.asarray(draw_regions(grey(), regions(boxes, **names), CLASSES, min_score=0.5))
    assert (picture == color(1)).all(-1).any()


def test_labels_say_what_the_record_holds():
    full = regions(
        [[0, 0, 9, 9]], scores=[0.8], class_ids=[1], class_probs=[0.75], attr_ids=[0], attr_probs=[0.5]
    )
    assert describe(full, CLASSES, ATTRIBUTES)[0].text == "1 square 0.75 · red 0.50"
    assert describe(regions([[0, 0, 9, 9]], class_ids=[1]), CLASSES, ())[0].text == "1 square"
    assert describe(regions([[0, 0, 9, 9]], scores=[0.8]), (), ())[0].text == "1 0.80"
    assert describe(regions([[0, 0, 9, 9]]), (), ())[0].text == "1"


@pytest.mark.parametrize("index", [3, -1, 2_000_000])
def test_ids_outside_the_vocabulary_are_shown_as_numbers(index):
    assert describe(regions([[0, 0, 9, 9]], class_ids=[index]), CLASSES, ())[0].class_name == f"class {index}"


def test_image_of_another_size_is_refused():
    with pytest.raises(DataError, match="'key': the image has 100x200 pixels .* 200x100"):
        draw_regions(grey(100, 200), regions([[0, 0, 9, 9]]))
