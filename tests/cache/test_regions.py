from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from cache import FAILURE_KINDS, Failure, InvalidRegions, Regions

BOXES = [[0, 0, 2, 2], [1, 1, 1, 3]]
FEATURES = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_lists_become_arrays_of_the_right_dtype():
    regions = Regions("a", 10.0, 20, BOXES, FEATURES, scores=[0, 1], class_ids=[3.0, 4.0], class_scores=[[1], [2]])
    assert regions.boxes.dtype == regions.features.dtype == regions.scores.dtype == np.float32
    assert regions.class_ids.dtype == np.int32 and regions.class_scores.dtype == np.float32
    assert (regions.width, regions.height, len(regions), regions.num_regions) == (10, 20, 2, 2)
    assert list(regions.arrays()) == ["boxes", "features", "scores", "class_ids", "class_scores"]
    assert "n=2, features=float32[2, 3], with scores" in repr(regions)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_feature_dtypes_are_kept_without_a_copy(dtype):
    features = np.array(FEATURES, dtype)
    assert Regions("a", 1, 1, BOXES, features).features is features


@pytest.mark.parametrize("changes, kind", [
    ({"boxes": [[0, 0, 2, 2]]}, "value_range"),
    ({"boxes": [[0, 0, 2], [0, 0, 2]]}, "bad_boxes"),
    ({"boxes": [[2, 0, 1, 2], [0, 0, 1, 1]]}, "bad_boxes"),
    ({"boxes": [[0, 2, 1, 1], [0, 0, 1, 1]]}, "bad_boxes"),
    ({"boxes": [[0, 0, np.inf, 1], [0, 0, 1, 1]]}, "non_finite"),
    ({"features": [[np.nan] * 3] * 2}, "non_finite"),
    ({"features": [1.0, 2.0]}, "value_range"),
    ({"features": [["x"] * 3] * 2}, "value_range"),
    ({"scores": [1.0]}, "value_range"),
    ({"class_ids": [1.5, 2.0]}, "value_range"),
    ({"class_ids": [2**40, 0]}, "value_range"),
    ({"global_features": [[1.0]]}, "value_range"),
    ({"width": 0}, "value_range"),
    ({"height": 1 << 32}, "value_range"),
    ({"height": -1}, "value_range"),
    ({"width": 1.5}, "value_range"),
    ({"width": "640"}, "value_range"),
    ({"height": float("nan")}, "value_range"),
    ({"height": None}, "value_range"),
    ({"boxes": None}, "value_range"),
    ({"boxes": [[1, 2], [3]]}, "value_range"),
    ({"source_digest": b"short"}, "value_range"),
    ({"source_digest": 5}, "value_range"),
])  # fmt: skip
def test_what_must_not_be_stored_is_refused(changes, kind):
    with pytest.raises(InvalidRegions, match="'a'") as error:
        Regions(**{"key": "a", "width": 9, "height": 9, "boxes": BOXES, "features": FEATURES, **changes})
    assert error.value.kind == kind
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_key_is_text():
    with pytest.raises(InvalidRegions, match="5: a key is text") as error:
        Regions(5, 9, 9, BOXES, FEATURES)
    assert error.value.kind == "key_invalid"


def test_no_regions_at_all():
    regions = Regions("a", 1, 1, np.zeros((0, 4)), np.zeros((0, 2048)))
    assert len(regions) == 0 and regions.features.shape == (0, 2048)


def test_copies(make, same):
    regions = make("a")
    for other in (regions.copy(), pickle.loads(pickle.dumps(regions)), regions.replace()):
        assert same(other, regions)
    assert not np.shares_memory(regions.copy().features, regions.features)
    with pytest.raises(InvalidRegions):
        regions.replace(scores=[1.0])


def test_failures():
    failure = Failure("a", "missing", "m")
    assert pickle.loads(pickle.dumps(failure)) == failure and failure.source == ""
    with pytest.raises(ValueError, match="'odd' is not one of"):
        Failure("a", "odd", "m")
    assert len(set(FAILURE_KINDS)) == 16
