import json

import numpy as np
import pytest

from cache import StoreWriter
from cache.causes import causes
from cache.compare import compare
from cache.contents import HeldContents, StoreContents
from cache.families import FAMILIES, MOST_RECORDS, Traits
from cache.stats import collect
from tests.cache.images import WORDS, image, pick

VG, VINVL = ({"classes": [f"thing {i}" for i in range(n)], "attributes": WORDS["attributes"]} for n in (1600, 1594))
RECORDS = 12


def ending(record, gap):
    """With a box that ends `gap` pixels before the image does."""
    boxes = record.boxes.copy()
    boxes[0, 2:] = np.array([record.width, record.height], np.float32) - gap
    return record.replace(boxes=boxes)


def port(i):
    return ending(image(i, 36, 2048, weights=1), 0)


def pyramid(i):
    record = ending(image(i, 20 + i % 5, 2048, weights=2), 0.8)
    probs = np.minimum(record.scores + 0.05 * (np.arange(len(record)) % 2), 1).astype(np.float32)
    return record.replace(attr_ids=None, attr_probs=None, class_probs=probs)


def caffe(i):
    record = image(i, 20 + i % 5, 2048, weights=3)
    return ending(pick(record, np.random.default_rng(i).permutation(len(record))), 0.8)


def caffe36(i):
    return ending(image(i, 36, 2048, weights=3), 0.8)


def detections(i):
    record = image(i, 40, 2048, weights=4)
    features = record.features.copy()
    features[30:] = features[:10]
    return ending(record.replace(features=features), -0.3 if i % 2 else 0.3)


def vinvl(i):
    return ending(image(i, 20 + i % 5, 2048, weights=5), 0.8)


def by_class(i):
    record = image(i, 40, 2048, weights=5)
    rows = np.concatenate([np.arange(30), np.arange(10)])  # of the first ones, for other classes
    record = record.replace(features=record.features[rows])
    return ending(pick(record, np.argsort(record.class_ids, kind="stable")), 0.8)


MADE = {
    "vg-r101": (port, VG),
    "vg-x101": (pyramid, VG),
    "bua-caffe": (caffe, VG),
    "bua-d2": (detections, VG),
    "vinvl": (vinvl, VINVL),
    "filter 0": (by_class, VINVL),
}


def contents(name, vocabularies=True):
    make, words = MADE[name]
    return HeldContents(name, {f"{i:06d}": make(i) for i in range(RECORDS)}, words if vocabularies else {})


def traits(name, vocabularies=True):
    held = contents(name, vocabularies)
    return Traits.of(held.vocabularies, held.records())


@pytest.mark.parametrize("name", MADE)
def test_each_family_is_told_by_its_habits(name):
    expected = {"filter 0": "vinvl"}.get(name, name)
    found = traits(name)
    alone = {"vg-x101": {"vg-x101", "vg-r101"}, "vg-r101": {"vg-r101"}}  # attributes may just not have been stored
    assert set(found.possible()) <= alone.get(expected, {expected}) and expected in found.possible()
    first, *seen = found.hints()
    assert expected in first and FAMILIES[expected] in first and seen
    json.dumps(found.to_dict())


@pytest.mark.parametrize(("name", "telling"), [("bua-caffe", "order of their own"), ("bua-d2", "repeat one"),
                                               ("filter 0", "order of their classes")])  # fmt: skip
def test_some_need_no_names_of_classes(name, telling):
    found = traits(name, vocabularies=False)
    assert {"filter 0": "vinvl"}.get(name, name) in found.possible() and any(telling in hint for hint in found.hints())


def test_what_36_regions_come_from_their_boxes_tell():
    ends = {caffe36: "bua-caffe", port: "vg-r101"}
    for make, expected in ends.items():
        found = Traits.of(VG, [make(i) for i in range(RECORDS)])
        assert found.possible() == (expected,) and "always 36 regions" in found.hints()


def test_names_that_occur_in_a_table_are_no_whole_vocabulary():
    """As of a predictions.tsv without a label map: sorted, and some of them missing."""
    words = {"classes": VINVL["classes"][:700]}
    words["classes"].sort()
    found = Traits.of(words, [vinvl(i) for i in range(RECORDS)])
    assert found.possible() == ("vinvl",) and not any("classes by name" in hint for hint in found.hints())
    assert Traits.of({"classes": words["classes"][::-1]}, [vinvl(0)]).possible() == ()


def test_the_geometry_behind_a_feature_is_vinvls():
    wide = [record.replace(features=np.pad(record.features, ((0, 0), (0, 6)))) for record in map(vinvl, range(3))]
    assert Traits.of({}, wide).possible() == ("vinvl",)


def test_ids_beyond_those_of_vinvl_exclude_it():
    record = caffe(0)
    ids = record.class_ids.copy()
    ids[0] = 1599
    assert "vinvl" not in Traits.of({}, [record.replace(class_ids=ids)]).possible()
    ids[0] = 1601
    assert Traits.of({}, [record.replace(class_ids=ids)]).possible() == ()


def test_fewer_than_36_of_a_few_images_are_no_bounds():
    records = [pick(caffe36(i), slice(12 if i < 2 else 36)) for i in range(RECORDS)]
    assert "bua-caffe" in Traits.of(VG, records).possible()


def test_little_is_said_of_little():
    assert Traits().possible() == tuple(FAMILIES) and Traits().hints() == []
    assert Traits.of({}, [image(0, d=64)]).hints() == []  # a detector of another kind
    assert Traits.of({}, [image(i, 36, 2048) for i in range(2)]).records == 2
    counted = Traits.of({}, (image(0, 1, 8) for _ in range(MOST_RECORDS + 5)))
    assert counted.records == MOST_RECORDS
    unlike = Traits.of({"classes": ["b", "a"]}, [port(0)])
    assert unlike.possible() == () and "no family that is known" in unlike.hints()[0]


def test_two_families_are_a_cause_that_compare_names():
    names = {name: {cause.name: cause for cause in causes(compare(contents("bua-caffe"), contents(name)))}
             for name in ("bua-caffe", "vinvl", "bua-d2")}  # fmt: skip
    assert names["bua-caffe"].keys() == {"equal"}
    for name in ("vinvl", "bua-d2"):
        cause = names[name]["other_family"]
        assert cause.text == f"another family of detectors: A is like bua-caffe, B like {name}"
        assert any(line.startswith("A: ") and "order of their own" in line for line in cause.evidence)
        assert "unknown" not in names[name]
    report = compare(contents("vinvl"), contents("bua-d2"))
    assert report.to_dict()["families"] == {"a": ["vinvl"], "b": ["bua-d2"]}


def test_stats_tell_the_family(tmp_path):
    with StoreWriter(tmp_path / "s.roi", "float16", vocabularies=VINVL) as writer:
        writer.write([vinvl(i) for i in range(RECORDS)])
    found = collect(StoreContents(tmp_path / "s.roi"))
    assert found.to_dict()["families"] == ["vinvl"] and "1,594 classes by name" in found.to_dict()["hints"]
