"""Differences of CIDEr beside what people prefer."""

import json

import numpy as np
import pytest

import roivault
from cache import DataError
from consumers.results import Table
from consumers.side_by_side import Judgement, compare, read_judgements, read_scores

HEAD = "model_a,model_b,language,prefer_a,prefer_b,same\n"
LANGUAGES = ("de", "en", "fr", "th")
SCORES = {
    **{("small", language): 40.0 for language in LANGUAGES},
    **dict(zip([("large", language) for language in LANGUAGES], (45.0, 60.0, 41.0, 35.0), strict=True)),
}
VOTES = dict(zip(LANGUAGES, ((20, 30, 50), (10, 60, 30), (30, 31, 39), (40, 20, 40)), strict=True))


@pytest.fixture
def judgements(tmp_path):
    rows = [f"small,large,{language},{','.join(map(str, votes))}\n" for language, votes in VOTES.items()]
    (tmp_path / "people.csv").write_text(HEAD + "".join(rows))
    return tmp_path / "people.csv"


def write_results(folder, name, scores):
    table = Table(folder / "results.jsonl")
    for language, value in scores.items():
        run = {
            "encoder": name, "task": "xm3600-captions", "language": language, "setup": "zero-shot", "annotations": ".",
            "stores": [],
        }  # fmt: skip
        table.add(run, "done", result={"cider": value, "rouge_l": 1.0, "n": 3, "unit": "words", "subsets": {}})


def test_a_gain_is_the_share_that_prefers_the_second_less_the_first():
    assert Judgement("a", "b", "en", 10, 30, 60).gain == 20 and Judgement("a", "b", "en", 3, 0, 0).gain == -100


def test_correlations_are_those_of_differences_and_gains(judgements):
    found = compare(read_judgements(judgements), SCORES)
    gains, differences = [10, 50, 1, -20], [5, 20, 1, -5]
    assert found.together.pearson == pytest.approx(np.corrcoef(gains, differences)[0, 1])
    assert (found.together.spearman, found.together.kendall) == (pytest.approx(1), pytest.approx(1))
    assert (found.together.n, found.together.same_sign) == (4, 100)
    assert found.pairs == {("small", "large"): found.together} and not found.missing


def test_the_order_of_the_models_does_not_matter(judgements):
    turned = [
        Judgement(one.model_b, one.model_a, one.language, one.prefer_b, one.prefer_a, one.same)
        for one in read_judgements(judgements)
    ]
    assert compare(turned, SCORES).together.pearson == pytest.approx(
        compare(read_judgements(judgements), SCORES).together.pearson
    )


def test_scores_are_those_of_results_and_of_files(judgements, tmp_path, capsys):
    write_results(tmp_path / "s", "mt5-captions", {la: SCORES["small", la] for la in LANGUAGES})
    large = [f"large,{language},{SCORES['large', language]}\n" for language in LANGUAGES[:3]]
    (tmp_path / "large.csv").write_text("model,language,cider\n" + "".join(large))
    line = ["tasks", "side-by-side", judgements, f"small={tmp_path / 's'}", tmp_path / "large.csv"]
    assert roivault.main([str(part) for part in [*line, "--json"]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["together"]["n"] == 3 and found["missing"] == [["large", "th"]]
    assert [point["difference"] for point in found["points"]] == [5.0, 20.0, 1.0]
    assert roivault.main([str(part) for part in line]) == 0
    told = capsys.readouterr().out
    assert "small - large" in told and "large in th" in told


def test_too_few_points_have_no_correlation(judgements):
    scores = {place: value for place, value in SCORES.items() if place[1] in ("de", "en")}
    found = compare(read_judgements(judgements), scores)
    assert found.together.pearson is None and found.together.n == 2
    with pytest.raises(DataError, match="no judgement is of models with scores"):
        compare(read_judgements(judgements), {("other", "en"): 1.0})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_a,model_b\nx,y\n", "line 2: wanted are model_a"),
        (HEAD + "a,b,en,1,2,x\n", "line 2: wanted are"),
        (HEAD + "a,b,en,0,0,0\n", "no judgements in"),
        (HEAD + "a,b,en,1,0,0\na,b,en,1,0,0\n", "line 3: a and b are compared in en twice"),
        (HEAD, "has no judgements"),
    ],
)
def test_files_of_judgements_that_make_no_sense_are_refused(tmp_path, text, words):
    (tmp_path / "people.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        read_judgements(tmp_path / "people.csv")


def test_scores_that_contradict_each_other_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("model,language,cider\nm,en,1\nm,en,2\n")
    with pytest.raises(DataError, match="line 3: m has 2.0 in en, and 1.0 elsewhere"):
        read_scores([str(tmp_path / "a.csv")], "cider")
    (tmp_path / "a.csv").write_text("model,language,cider\nm,en,nan\n")
    with pytest.raises(DataError, match="line 2: m has nan in en, which is no score"):
        read_scores([str(tmp_path / "a.csv")], "cider")
    (tmp_path / "b.csv").write_text("model,language\nm,en\n")
    with pytest.raises(DataError, match="wanted are model, language and cider"):
        read_scores([str(tmp_path / "b.csv")], "cider")
