"""The published numbers: all there, and those that follow from others do follow from them."""

from collections import Counter

import pytest

from consumers.published import SOURCES, Place, published_scores
from consumers.report_scores import Scores, few_shot_samples, languages_of

CELLS = {"3": 63, "4": 91, "5": 20, "10": 24, "11": 72, "12": 80, "13": 112, "14": 196, "15": 80, "16": 196, "17": 196}
CELLS |= {"18": 20, "19": 20, "20": 32, "21": 8}


def of(source, *tables):
    return [one for one in published_scores() if one.source == source and (not tables or one.table in tables)]


def measured(rows):
    return Scores((one.model, one.place, one.value) for one in rows if not one.place.language.startswith("avg"))


def test_every_cell_of_the_tables_is_there_once():
    assert Counter(one.table for one in of("iglue-paper")) == CELLS
    assert len(of("iglue-results")) == 1636 and {one.source for one in published_scores()} == set(SOURCES)
    for source in SOURCES:
        keys = Counter((one.model, one.place) for one in of(source))
        assert not source.endswith("results") or max(keys.values()) == 1


def test_scores_of_vsr_as_printed():
    found = {(one.model, one.place.task, one.place.metric): (one.value, one.deviation) for one in of("vsr-paper")}
    assert len(found) == 15
    assert found["lxmert-vsr", "vsr", "accuracy"] == (70.1, 0.9) and found["human", "vsr", "accuracy"] == (95.4, None)
    assert found["vilt-frames", "vsr-left-right", "accuracy"] == (59.2, 1.8)


def test_scores_of_maxm_as_printed():
    counts = Counter(one.table for one in of("maxm-paper"))
    assert counts == {"MaXM 5": 28, "MaXM 6": 28, "MaXM 7": 63, "MaXM 8": 84, "MaXM 9": 56}
    found = {(one.model, *one.place): one.value for one in of("maxm-paper")}
    assert found["blip2", "translate-test", "maxm", "hi", "0", "accuracy"] == 63.3
    assert found["blip2", "zero-shot", "maxm", "hi", "0", "accuracy"] == 0.3
    assert found["simple-mpt", "translate-train", "maxm", "fr", "0", "cider"] == 102.0
    assert found["ofa", "zero-shot", "maxm", "zh", "0", "rouge_l"] == 6.6
    assert found["simple-mpt", "translate-train", "xgqa", "bn", "0", "accuracy_full"] == 38.6
    rows = {"en": 298, "fr": 293, "hi": 294, "iw": 315, "ro": 333, "th": 302, "zh": 307}
    for (*_, language, _, metric), value in found.items():  # each accuracy is a whole number of right answers
        if metric == "accuracy":
            n = rows[language]
            assert any(round(100 * k / n, 1) == value for k in range(n + 1)), (language, value)


RELEASED, DIGITS = "iglue-results", "iglue-paper"
FEW_SHOT = ("13", "14", "15", "16", "17")


@pytest.mark.parametrize("table", ["3", "4", "5", "12", *FEW_SHOT, "18", "20"])
def test_released_scores_make_the_printed_tables(table):
    scores = measured(of(RELEASED))
    wrong = [one for one in of(DIGITS, table) if round(scores.get(one.model, one.place).value, 2) != one.value]
    assert not wrong


def test_areas_below_curves_follow_from_the_printed_digits():
    scores = measured(of(DIGITS, *FEW_SHOT))
    assert [round(scores.get(one.model, one.place).value, 2) for one in of(DIGITS, "18")] == [
        one.value for one in of(DIGITS, "18")
    ]


@pytest.mark.parametrize(("ending", "equal"), [("_gain", 11), ("_gain_printed", 19)])
def test_gains_by_both_definitions(ending, equal):
    scores = measured(of(RELEASED))
    same = {}
    for one in of(DIGITS, "19"):
        place = one.place._replace(metric=one.place.metric.replace("_gain", ending))
        same[one.model, place.task, place.metric] = round(scores.get(one.model, place).value, 2) == one.value
    assert sum(same.values()) == equal
    if ending == "_gain_printed":
        assert [key for key, there in same.items() if not there] == [("m3p", "xflickrco", "ir_r1_gain_printed")]


def test_averages_are_of_all_languages_but_english():
    assert languages_of("marvl", "zero-shot") == ("id", "sw", "ta", "tr", "zh")
    assert languages_of("marvl", "few-shot") == ("id", "tr", "zh")
    assert few_shot_samples("marvl") == {"1": 4, "2": 8, "4": 16, "10": 40, "10x2": 80}
    assert few_shot_samples("xflickrco") == {str(n): n for n in (1, 5, 10, 25, 50, 100)}
    place = Place("zero-shot", "xvnli", "avg", "0", "accuracy")
    values = {"en": 90.0, "ar": 1.0, "es": 2.0, "fr": 3.0, "ru": 4.005}
    rows = [("m", place._replace(language=language), value) for language, value in values.items()]
    assert Scores(rows).get("m", place).value == sum(list(values.values())[1:]) / 4
    assert Scores(rows[:-1]).get("m", place) is None
    assert Scores(rows).get("m", place._replace(language="avg+en")).value == pytest.approx(sum(values.values()) / 5)


def test_seeds_have_a_mean_and_a_deviation():
    place = Place("zero-shot", "xvnli", "ar", "0", "accuracy")
    rows = [
        ("m", place._replace(language=la), seed + n)
        for seed in (50.0, 54.0)
        for n, la in enumerate("ar es fr ru".split())
    ]
    scores = Scores(rows)
    assert scores.get("m", place) == (52.0, pytest.approx(8**0.5), 2)
    assert scores.get("m", place._replace(language="avg")) == (53.5, pytest.approx(8**0.5), 2)
    assert Scores(rows[:5]).get("m", place._replace(language="avg")) == (51.5, None, 1)
