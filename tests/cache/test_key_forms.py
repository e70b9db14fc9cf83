import pytest

from cache.contents import HeldContents
from cache.key_forms import AS_IT_IS, translation


def held(keys):
    return HeldContents("held", dict.fromkeys(keys), {})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("train/{0}.jpg", "train/{0}.jpg"),
        ("train/{0}.jpg", "{0}.jpg"),
        ("train/{0}.jpg", "train/{0}"),
        ("train/{0}.jpg", "{0}"),
        ("x/{0}.v1.jpg", "{0}"),
        ("val2014/COCO_val2014_{0:012}.jpg", "{0}"),
        ("COCO_val2014_{0:012}", "{0:012}"),
        ("images/sw/39-Panci/39-{0}.jpg", "sw/39-{0}"),
        ("a/{0}.jpg", "b/{0}.png"),
    ],
)
def test_keys_find_their_images_both_ways(a, b):
    mine, theirs = ([form.format(i) for i in range(1, 40)] for form in (a, b))
    for one, other in ((mine, theirs), (theirs, mine)):
        rule = translation(held(one), held(other))
        assert [rule(key) for key in one] == other
        assert rule.changes == (a != b)


def test_keys_of_other_images_stay_as_they_are():
    rule = translation(held(["cat", "dog"]), held(["bird", "fish"]))
    assert (rule.rule_a, rule.rule_b) == (AS_IT_IS, AS_IT_IS) and rule("cat") == "cat"


def test_one_form_of_many_images_is_no_match():
    rule = translation(held([f"{i}/left.jpg" for i in range(40)]), held(["left.jpg", "right.jpg"]))
    assert not rule.changes


def test_empty_sides():
    assert not translation(held([]), held(["a"])).changes
    assert not translation(held(["a"]), held([])).changes
