"""Each cause is named for pairs that differ in just that, and for no others."""

import numpy as np
import pytest

from cache.causes import causes
from cache.compare import compare
from cache.contents import HeldContents
from tests.cache.images import WORDS, image, pick, shaken

IMAGES = 24


def held(records, words=WORDS, **choices):
    return HeldContents("held", {record.key: record for record in records}, words, choices)


def frame(regions):
    return np.array([regions.width, regions.height] * 2, np.float32)


def named(mine, theirs, words=WORDS):
    return [cause.name for cause in causes(compare(held(mine), held(theirs, words)))]


def boxes_of(change):
    return lambda r: r.replace(boxes=np.asarray(change(r), np.float32))


def features_of(change):
    return lambda r: r.replace(features=np.asarray(change(r.features), np.float32))


def resized(short_side, long_side):
    return boxes_of(lambda r: r.boxes * min(short_side / min(frame(r)), long_side / max(frame(r))))


def trusted_boxes(change):
    """Boxes that a writer would refuse, as a file of another system may hold them."""
    return lambda r: type(r).trusted(**{**r.__dict__, "boxes": change(r.boxes).astype(np.float32)})


def swapped_colours(r):
    """Red and blue change places; orange looks blue."""
    ids = np.array([1, 0, 2, 3, 1, 5, 6, 7])[r.attr_ids].astype(np.int32)
    return shaken(r, 0.3).replace(attr_ids=ids)


def with_mean_row(r):
    arrays = {name: np.concatenate([array[:1], array]) for name, array in r.arrays().items()}
    arrays["boxes"][0] = [0, 0, r.width, r.height]
    arrays["features"][0] = r.features.mean(axis=0)
    return r.replace(**arrays)


def jittered(amount):
    def change(r):
        rng = np.random.default_rng(r.width)
        side = np.tile(r.boxes[:, 2:] - r.boxes[:, :2], 2)
        moved = r.boxes + rng.uniform(-amount, amount, r.boxes.shape) * side
        return np.concatenate([np.minimum(moved[:, :2], moved[:, 2:]), np.maximum(moved[:, :2], moved[:, 2:])], axis=1)

    return boxes_of(change)


def reaching_out(r):
    boxes = r.boxes.copy()
    boxes[0] = [r.width - 50, 10, r.width + 20, 90]
    return r.replace(boxes=boxes)


CAUSES = {
    "equal": (lambda r: r, ["equal"]),
    "float16": (features_of(lambda f: f.astype(np.float16)), ["dtype"]),
    "normalised": (features_of(lambda f: f / np.linalg.norm(f, axis=1, keepdims=True)), ["normalised"]),
    "factor": (features_of(lambda f: 3 * f), ["factor"]),
    "other arithmetic": (features_of(lambda f: f * np.linspace(0.999, 1.001, f.shape[1])), ["arithmetic"]),
    "shares of the sides": (boxes_of(lambda r: r.boxes / frame(r)), ["box_frame"]),
    "800/1333": (resized(800, 1333), ["box_scale"]),
    "600/1000": (resized(600, 1000), ["box_scale"]),
    "width and height": (trusted_boxes(lambda b: np.concatenate([b[:, :2], b[:, 2:] - b[:, :2]], 1)), ["xywh"]),
    "corners taken for sizes": (boxes_of(lambda r: r.boxes + r.boxes[:, [0, 1, 0, 1]] * [0, 0, 1, 1]), ["xywh"]),
    "y before x": (boxes_of(lambda r: r.boxes[:, [1, 0, 3, 2]]), ["yxyx"]),
    "last pixel": (boxes_of(lambda r: r.boxes - [0, 0, 1, 1]), ["box_offset"]),
    "whole pixels": (boxes_of(lambda r: np.rint(r.boxes)), ["box_rounding"]),
    "regressed": (jittered(0.15), ["regression"]),
    "first": (lambda r: pick(r, slice(0, 8)), ["selection"]),
    "some": (lambda r: pick(r, [0, 2, 3, 5, 7, 8, 11]), ["selection"]),
    "reordered": (lambda r: pick(r, slice(None, None, -1)), ["row_order"]),
    "mean row": (with_mean_row, ["global_row"]),
    "background first": (lambda r: r.replace(class_ids=r.class_ids + 1), ["class_offset"]),
    "background gone": (lambda r: r.replace(class_ids=r.class_ids - 1), ["class_offset"]),
    "attributes after background": (lambda r: r.replace(attr_ids=r.attr_ids + 1), ["attribute_offset"]),
    "other input, same colours": (lambda r: shaken(r, 0.3), ["resize_rule"]),
    "swapped channels": (swapped_colours, ["channel_order"]),
    "appended numbers": (features_of(lambda f: np.pad(f, ((0, 0), (0, 6)), constant_values=1)), ["appended_columns"]),
}  # fmt: skip


@pytest.mark.parametrize("what", CAUSES)
def test_cause_is_named_whichever_side_has_it(what):
    change, expected = CAUSES[what]
    plain = [image(i) for i in range(IMAGES)]
    changed = [change(record) for record in plain]
    assert named(plain, changed) == expected
    assert named(changed, plain) == expected


def test_features_of_another_length():
    plain = [image(i) for i in range(IMAGES)]
    other = [r.replace(features=image(i, weights=1).features[:, :11]) for i, r in enumerate(plain)]
    found = causes(compare(held(plain), held(other)))
    dim = plain[0].features.shape[1]
    assert found[0].name == "feature_dim" and f"{dim} numbers in A and 11 in B" in found[0].text
    assert {cause.name for cause in found} <= {"feature_dim", "other_weights"}


def test_side_is_named():
    plain, shares = ([change(image(i)) for i in range(4)] for change in (lambda r: r, CAUSES["shares of the sides"][0]))
    assert "boxes of B are shares" in causes(compare(held(plain), held(shares)))[0].text
    assert "boxes of A are shares" in causes(compare(held(shares), held(plain)))[0].text
    (offset,) = causes(compare(held(plain), held(map(CAUSES["background first"][0], plain))))
    assert "ids of B are those of A +1: B counts background as 0" in offset.text
    (scale,) = causes(compare(held(plain), held(map(resized(600, 1000), plain))))
    assert "600/1000" in scale.text and "boxes of B" in scale.text


def test_clipped_boxes():
    wide = [reaching_out(image(i)) for i in range(IMAGES)]
    cut = [r.replace(boxes=np.clip(r.boxes, 0, frame(r))) for r in wide]
    assert named(wide, cut) == ["box_clip"]
    assert "boxes of A reach beyond" in causes(compare(held(wide), held(cut)))[0].text


@pytest.mark.parametrize("change", [lambda r: r, lambda r: pick(r, [0, 3, 5, 9])])
def test_other_weights(change):
    assert named([image(i) for i in range(IMAGES)], [change(image(i, weights=1)) for i in range(IMAGES)]) == [
        "other_weights"
    ]


def test_other_weights_are_not_asserted_of_a_single_image():
    assert named([image(0, n=3)], [image(0, n=3, weights=1).replace(boxes=image(1, n=3).boxes / 9)]) == ["unknown"]


def test_without_names_of_colours_the_input_is_not_told_apart():
    plain = [image(i) for i in range(IMAGES)]
    (cause,) = causes(compare(held(plain, {}), held([shaken(r, 0.3) for r in plain], {})))
    assert cause.name == "other_input" and "identify" in cause.text


@pytest.mark.parametrize(
    ("choice", "values", "expected"),
    [("preprocess.channels", ("bgr", "rgb"), "channel_order"), ("preprocess.short_side", (800, 600), "resize_rule")],
)
def test_what_the_caches_record_tells_inputs_apart(choice, values, expected):
    plain = [image(i) for i in range(IMAGES)]
    sides = [held(plain, {}, **{choice: values[0]}), held([shaken(r, 0.3) for r in plain], {}, **{choice: values[1]})]
    (cause,) = causes(compare(*sides))
    assert cause.name == expected
    assert f"recorded: {choice} is {values[0]} in A, {values[1]} in B" in cause.evidence


def test_features_pooled_from_the_stored_boxes():
    """Some of the boxes are those of their proposals; their features are the same."""
    plain = [image(i) for i in range(IMAGES)]
    pooled = []
    for record in plain:
        features = shaken(record, 0.3).features
        features[::4] = record.features[::4]
        pooled.append(record.replace(features=features))
    assert named(plain, pooled) == ["pooled_boxes"]


def test_several_causes_at_once():
    plain = [image(i) for i in range(IMAGES)]
    changed = [
        resized(800, 1333)(CAUSES["float16"][0](CAUSES["background first"][0](pick(r, slice(0, 9))))) for r in plain
    ]
    assert named(plain, changed) == ["dtype", "box_scale", "selection", "class_offset"]


def test_images():
    plain = [image(i) for i in (0, 1, 3)]
    turned = [r.replace(width=r.height, height=r.width) for r in plain]
    assert "orientation" in named(plain, turned)
    digests = [[r.replace(source_digest=bytes([side] * 16)) for r in plain] for side in (1, 2)]
    assert named(*digests) == ["other_images"]
    assert "resized_images" in named(plain, [r.replace(width=2 * r.width, height=2 * r.height) for r in plain])


def test_names_that_are_numbered_differently():
    plain = [image(i) for i in range(IMAGES)]
    order = np.random.default_rng(0).permutation(30)
    words = {**WORDS, "classes": [WORDS["classes"][i] for i in order]}
    other = [r.replace(class_ids=np.argsort(order)[r.class_ids]) for r in plain]
    assert named(plain, other, words) == ["class_vocabulary"]


def test_ids_without_any_relation_are_unknown():
    plain = [image(i) for i in range(IMAGES)]
    other = [r.replace(class_ids=np.random.default_rng(i).integers(1, 25, len(r))) for i, r in enumerate(plain)]
    cause = causes(compare(held(plain), held(other)))[0]
    assert cause.name == "unknown" and "class ids" in cause.text and any("agree in" in line for line in cause.evidence)


def test_features_without_any_relation_in_equal_scenes_are_not_explained_away():
    """Halfway between the same and other weights nothing is asserted."""
    plain, other = ([image(i, weights=w) for i in range(IMAGES)] for w in (0, 1))
    mixed = [a.replace(features=0.45 * a.features + 0.55 * b.features) for a, b in zip(plain, other, strict=True)]
    report = compare(held(plain), held(mixed))
    assert 0.2 < report.alignment < 0.95
    assert {cause.name for cause in causes(report)} <= {"unknown", "resize_rule"}


def test_a_difference_in_one_image_of_many_is_not_passed_over():
    plain = [image(i) for i in range(IMAGES)]
    changed = [*plain[1:], plain[0].replace(features=plain[0].features[::-1])]
    (cause,) = causes(compare(held(plain), held(changed)))
    assert (cause.name, cause.images) == ("unknown", 1) and "features" in cause.text and cause.evidence


def test_nothing_in_common():
    (cause,) = causes(compare(held([image(0, key="apple")]), held([image(0, key="pear")])))
    assert cause.name == "unknown" and "no image is in both" in cause.text


def test_an_offset_of_ids_is_not_taken_for_swapped_colours():
    plain = [image(i) for i in range(IMAGES)]
    other = [shaken(r, 0.3).replace(attr_ids=r.attr_ids + 1) for r in plain]  # "red" comes before "blue"
    assert set(named(plain, other)) == {"other_input", "attribute_offset"}


def test_names_of_one_side_serve_both():
    plain = [image(i) for i in range(IMAGES)]
    for words in ((WORDS, {}), ({}, WORDS)):
        sides = (held(plain, words[0]), held([swapped_colours(r) for r in plain], words[1]))
        assert [cause.name for cause in causes(compare(*sides))] == ["channel_order"]


def test_copies_by_chance_are_other_images():
    plain = [image(i) for i in range(8)]
    other = [r.replace(width=2 * r.width, height=(2 if i % 2 else 3) * r.height) for i, r in enumerate(plain)]
    assert "other_images" in named(plain, other) and "resized_images" not in named(plain, other)
