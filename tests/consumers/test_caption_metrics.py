import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from cache import DataError
from consumers.caption_metrics import cider, exact_match, rouge_l
from consumers.caption_tokens import characters, tokens, unit_of, words

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data/iglue/datasets"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the annotation files are not here (ROIVAULT_SHARED)")


def first_against_others(path, cut, count=None):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        rows = [json.loads(line)["sentences"] for line in file][:count]
    return [cut(row[0]) for row in rows], [[cut(text) for text in row[1:]] for row in rows]


def latin(text):
    return re.findall("[a-z0-9]+", text.lower())


@needs_data
@pytest.mark.parametrize(
    "name, cut, count, scores",
    [
        ("flickr30k/annotations/test_ann.jsonl.gz", latin, 100, (0.520618, 0.433391)),
        ("flickr30k/annotations/test_ann.jsonl.gz", latin, None, (0.536958, 0.436249)),
        ("xFlickrCO/annotations/ja/train_100x5.jsonl", list, None, (0.691815, 0.510613)),
    ],
)
def test_scores_of_real_captions_are_those_of_the_reference_code(name, cut, count, scores):
    pairs = first_against_others(DATA / name, cut, count)
    assert (cider(*pairs).mean(), rouge_l(*pairs).mean()) == pytest.approx(scores, abs=1e-6)


def test_short_answers_are_scored_by_their_share_of_equal_references():
    said = [["a"], ["b"], ["c"], ["d"], ["x"], ["y"]]
    right = [[["a"]], [["b"]], [["c"], ["k"]], [["d"], ["l"], ["m"], ["n"]], [["e"]], [["f"]]]
    assert cider(said, right).mean() == pytest.approx(1.145833, abs=1e-6)
    assert rouge_l(said, right).mean() == pytest.approx(0.666667, abs=1e-6)
    assert cider(said, right).tolist() == pytest.approx([2.5, 2.5, 1.25, 0.625, 0, 0])


def test_the_same_text_has_the_highest_score_and_none_of_one_item_alone():
    text = "a dog runs on the beach".split()
    other = "two men sit at a table".split()
    assert cider([text, other], [[text], [other]]).tolist() == pytest.approx([10, 10])
    assert cider([text], [[text]]).tolist() == [0]


def test_nothing_said_is_worth_nothing():
    empty = [[], ["a"]], [[["b"]], [[]]]
    assert cider(*empty).tolist() == [0, 0] and rouge_l(*empty).tolist() == [0, 0]
    assert len(cider([], [])) == len(rouge_l([], [])) == 0


def test_rouge_takes_the_best_precision_and_the_best_recall():
    (score,) = rouge_l([["a", "b", "c"]], [[["a", "b", "c", "d"], ["a", "b"]]])
    assert score == 1.0  # all of it is in the first, and all of the second is in it
    (score,) = rouge_l([["a", "x", "b"]], [[["a", "b"]]])
    assert score == pytest.approx((1 + 1.44) * (2 / 3) * 1 / (1 + 1.44 * 2 / 3))


@pytest.mark.parametrize("metric", [cider, rouge_l])
def test_items_without_references_are_refused(metric):
    with pytest.raises(DataError, match="1 items have nothing to compare with, such as the one at 1"):
        metric([["a"], ["b"]], [[["a"]], []])
    with pytest.raises(DataError, match="1 texts for 2 items"):
        metric([["a"]], [[["a"]], [["b"]]])


def test_an_answer_is_right_that_equals_any():
    said = ["white ", "White", "red"]
    answers = [["white", "cream"], ["white"], ["blue"]]
    assert exact_match(said, answers).tolist() == [True, False, False]
    assert exact_match(said, answers, lambda text: " ".join(words(text))).tolist() == [True, True, False]
    assert exact_match([], []).dtype == np.bool_


@pytest.mark.parametrize(
    "text, cut",
    [
        ("It isn't a black-and-white dog; it's 3.5 m (tall)!", "it is n't a black-and-white dog it 's 3.5 m tall"),
        ("l'eau, aujourd'hui... «bleue»", "l' eau aujourd'hui bleue"),
        ("सफेद और काला।", "सफेद और काला"),
        ("$5 at 10:30", "$ 5 at 10:30"),
        (" - ", ""),
    ],
)
def test_words_are_cut_as_those_of_coco(text, cut):
    assert words(text) == cut.split()


def test_languages_without_spaces_are_cut_into_characters_with_their_marks():
    assert [unit_of(one) for one in ("zh", "th", "ja", "iw")] == ["characters"] * 3 + ["words"]
    assert tokens("白色的。 OK 12", "zh") == ["白", "色", "的", "ok", "12"]
    assert characters("สีน้ำ") == ["สี", "น้", "ำ"]
