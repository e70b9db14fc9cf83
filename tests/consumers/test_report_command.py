"""`roivault report`: from results and predictions to tables, intervals, correlations, overlaps and plots."""

import csv
import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import roivault
from cache import UsageError
from consumers.published import most_precise
from consumers.report_intervals import groups_of, paired_bootstrap
from consumers.report_languages import read_properties
from consumers.report_runs import read_runs
from consumers.results import Table
from consumers.runs import EvaluationRun
from consumers.tasks import Example

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data/iglue"
LANGUAGES = ("en", "ar", "es", "fr", "ru")
ROWS = 20


@pytest.fixture
def annotations(tmp_path):
    """XVNLI's test sets, all rows "neutral", of twenty pictures of Flickr30K."""
    for language in LANGUAGES:
        path = tmp_path / f"annotations/XVNLI/annotations/{language}/test.jsonl"
        path.parent.mkdir(parents=True)
        rows = [
            {"gold_label": "neutral", "sentence2": "t", "pairID": f"p{n}", "Flikr30kID": 100 + n} for n in range(ROWS)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "annotations"


def said(right):
    return [{"questionId": f"p{n}", "prediction": "neutral" if n < right else "entailment"} for n in range(ROWS)]


@pytest.fixture
def folder(tmp_path):
    """Predictions of two models, laid out as they are released: zero-shot, and every number of shots."""
    for model, more in (("ctrl_uc2", 0), ("mine", 2)):
        for place, shots, right in (("zero_shot", "0", 8), *(("few_shot", s, 10) for s in "1 5 10 20 25 48".split())):
            for number, language in enumerate(LANGUAGES):
                path = tmp_path / f"runs/xvnli/{place}/{model}/test_{language}_{shots}_result.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(said(right + number + more)))
    return tmp_path / "runs"


def run(capsys, *args):
    code = roivault.main(["report", *map(str, args)])
    return code, capsys.readouterr()


def facts(capsys, *args, code=0):
    found, said = run(capsys, *args, "--json")
    assert found == code, said.err
    return json.loads(said.out)


def cells(report, table):
    """{(model, task, metric): (measured, published)} of a table's cells that were measured."""
    return {
        (cell["model"], cell["task"], cell["metric"]): (cell["measured"], cell["published"])
        for one in report["tables"]
        if one["table"] == table
        for cell in one["cells"]
        if cell["measured"] is not None
    }


def test_predictions_are_scored_into_the_published_tables(capsys, annotations, folder):
    report = facts(capsys, folder, "--annotations", annotations)
    assert (report["runs"], report["failed"]) == (70, [])
    uc2, mine = ("uc2", "xvnli", "accuracy"), ("mine", "xvnli", "accuracy")
    assert cells(report, "4") == {uc2: (52.5, 62.04925), mine: (62.5, None)}  # 9 to 12 right of 20, and two more
    assert cells(report, "5") == {uc2: (62.5, 63.68125), mine: (72.5, None)}
    rise = 52.5 + 10 - 10 * 3 / 168 / 2  # flat but for the first three of 168 samples
    assert cells(report, "18")["uc2", "xvnli", "accuracy_auc"] == (pytest.approx(rise), 63.43)
    assert cells(report, "19")["mine", "xvnli", "accuracy_gain"][0] == pytest.approx(10)
    assert len(report["scores"]) == 70 and {row["n"] for row in report["scores"]} == {ROWS}
    text = run(capsys, folder, "--annotations", annotations)[1].out
    assert "| zero-shot | uc2 | 52.50 (62.05, -9.55) |" in text
    assert "Nothing was measured of the published tables 10, 11, 12, 14" in text


def test_without_runs_the_published_tables_are_shown(capsys):
    code, said = run(capsys)
    assert code == 0 and "| ar | uc2 | - (56.19) | - (56.36) |" in said.out and "Nothing was measured" not in said.out


def test_results_of_evaluate_and_seeds(capsys, annotations, tmp_path):
    table = Table(tmp_path / "out/results.jsonl")
    for seed, right in (("a", 10), ("b", 14)):
        for language in LANGUAGES:
            one = EvaluationRun("uc2", seed, "xvnli", ("none.roi",), str(annotations), language)
            (tmp_path / f"out/{one.file_name}.json").parent.mkdir(exist_ok=True)
            (tmp_path / f"out/{one.file_name}.json").write_text(json.dumps(said(right)))
            result = {"accuracy": 5.0 * right, "n": ROWS, "subsets": {}, "predictions": f"{one.file_name}.json"}
            table.add(one, "done", result=result)
    table.add(
        EvaluationRun("m3p", "c", "xvnli", (), str(annotations), setup="few-shot", shots="5"), "failed", error="no"
    )
    report = facts(capsys, tmp_path / "out", code=65)
    (cell,) = [one for one in report["tables"][1]["cells"] if one["runs"]]
    assert (cell["measured"], cell["runs"], cell["deviation"]) == (60.0, 2, pytest.approx(200**0.5))
    assert [one["why"] for one in report["failed"]] == ["no"] and "few-shot" in report["failed"][0]["where"]
    report = facts(capsys, f"first={tmp_path}/out", tmp_path / "out", code=65)  # the same file twice counts once
    assert {row["model"] for row in report["scores"]} == {"first"} and len(report["scores"]) == 10


def test_variants_are_no_seeds(tmp_path):
    table = Table(tmp_path / "results.jsonl")
    for legacy in (False, True):
        one = EvaluationRun("uc2", "c", "xvnli", (), "a", legacy=legacy)
        table.add(one, "done", result={"accuracy": 5.0, "n": 20})
    assert [run.model for run in read_runs([str(tmp_path)]).runs] == ["uc2", "uc2 (legacy)"]


def test_what_cannot_be_scored_is_told(capsys, annotations, folder, tmp_path):
    path = folder / "xvnli/zero_shot/mine/test_ar_0_result.json"
    path.write_text("[]")
    report = facts(capsys, folder, "--annotations", annotations, code=65)
    assert report["runs"] == 69 and "20 of 20 rows of the annotations have no prediction" in report["failed"][0]["why"]
    assert ("mine", "xvnli", "accuracy") not in cells(report, "4")  # no average of what is not whole
    (tmp_path / "nothing").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/results.jsonl").touch()
    (tmp_path / "odd/results.jsonl").parent.mkdir()
    (tmp_path / "odd/results.jsonl").write_text('{"run": {"encoder": "uc2"}, "status": "done", "result": {}}\n')
    for line, code, message in (
        ([folder], 2, "predictions files are scored against annotations; name their folder with --annotations"),
        ([folder, "--out", "/dev/null/deep"], 74, "--out /dev/null/deep cannot be made"),
        ([folder, "--out", path], 2, "is a file; give a folder"),
        ([tmp_path / "nothing"], 66, "has no results.jsonl and no predictions"),
        ([tmp_path / "nowhere"], 66, "nowhere does not exist"),
        ([tmp_path / "begun"], 66, "begun: no run is in results.jsonl yet"),
        ([folder, "--annotations", tmp_path / "nowhere"], 66, "nowhere are not a folder"),
        ([tmp_path / "odd"], 65, "run 1 is not one of `evaluate`"),
        ([annotations / "XVNLI/annotations/ar/test.jsonl"], 65, "is not a row of results"),
        ([folder, "--annotations", annotations, "--against", "m3p"], 2, "'m3p' is not one of uc2, mine"),
        ([folder, "--plot-format", "gif"], 2, "--plot-format gif is not one of png, svg"),
        ([folder, "--eval-set", "half"], 2, "--eval-set half is not one of"),
        ([folder, "--draw", "captions"], 2, "--draw captions is not one of pictures, examples"),
        ([folder, "--languages", tmp_path / "l.csv"], 66, "l.csv is not there"),
    ):
        found, said = run(capsys, *line)
        assert (found, message in said.err) == (code, True), said.err


def test_results_that_make_no_sense_are_not_scored(tmp_path):
    table = Table(tmp_path / "results.jsonl")
    run = asdict(EvaluationRun("uc2", "c", "xvnli", (), "annotations"))
    results = (
        {"accuracy": 5.0},
        {"accuracy": float("nan"), "n": 2},
        {"accuracy": 5.0, "n": 2, "subsets": {"a": {"b": 1}}},
    )
    for number, result in enumerate(results):
        table.add({**run, "batch_size": number}, "done", result=result)
    table.add({**run, "task": "chess"}, "done", result={})
    found = read_runs([str(tmp_path)])
    assert found.runs == [] and len(found.failed) == 4


@pytest.mark.parametrize("size", [1, 8])
def test_intervals_are_those_of_drawing_groups(size):
    rng = np.random.default_rng(0)
    groups = np.sort(rng.integers(0, 400 // size, 400))
    groups = np.unique(groups, return_inverse=True)[1]
    count = groups.max() + 1
    lean = rng.random(count)[groups]  # examples of a group are alike
    ours, others = rng.random(400) < lean, rng.random(400) < 0.5
    difference, low, high = paired_bootstrap(ours, others, groups)
    members = [np.flatnonzero(groups == group) for group in range(count)]
    gains = []
    for _ in range(4000):
        rows = np.concatenate([members[group] for group in rng.integers(0, count, count)])
        gains.append(100 * (ours[rows].mean() - others[rows].mean()))
    wanted = np.percentile(gains, [2.5, 97.5])
    assert difference == pytest.approx(100 * (ours.mean() - others.mean()))
    assert (low, high) == (pytest.approx(wanted[0], abs=0.7), pytest.approx(wanted[1], abs=0.7))
    assert paired_bootstrap(ours, ours, groups) == (0, 0, 0)
    if size > 1:
        alone = paired_bootstrap(ours, others, np.arange(400))
        assert alone[0] == difference and high - low > alone[2] - alone[1], "too narrow, as if all were independent"


def test_examples_that_share_pictures_are_drawn_together():
    pictures = [("a",), ("b",), ("c", "d"), ("b", "e"), ("a",), ("e", "f")]
    examples = [Example(str(n), "", tuple((key,) for key in keys)) for n, keys in enumerate(pictures)]
    groups = groups_of(examples)
    assert len({groups[0], groups[1], groups[2]}) == 3 and groups.max() == 2
    assert groups[0] == groups[4] and groups[1] == groups[3] == groups[5]
    assert groups_of(examples, "examples").tolist() == list(range(6))
    with pytest.raises(UsageError, match="by pictures or by examples"):
        groups_of(examples, "captions")


def test_models_are_compared_example_by_example(capsys, annotations, folder):
    report = facts(capsys, folder, "--annotations", annotations, "--against", "uc2")
    assert len(report["intervals"]) == 35
    for one in report["intervals"]:
        assert (one["model"], one["difference"], one["only"], one["other"], one["n"]) == ("mine", 10.0, 2, 0, ROWS)
        assert 0 <= one["low"] <= 10 <= one["high"]


def test_properties_of_languages(capsys, annotations, folder, tmp_path):
    path = tmp_path / "l.csv"
    path.write_text("language,size\nen,9\nar,10\nes,100\nfr,1000\nru,10000\nzh,\n")
    options = ("--annotations", annotations, "--languages", path)
    found = {one["model"]: one for one in facts(capsys, folder, *options)["correlations"]}
    assert found["uc2"]["r_log"] == pytest.approx(1) and 0.7 < found["uc2"]["r"] < 0.9
    assert set(found["mine"]["points"]) == {"ar", "es", "fr", "ru"}
    vectors = tmp_path / "l.json"
    vectors.write_text(json.dumps({"likeness": {"en": [1, 1], "de": [2, 2], "ja": [1, -1], "xx": [0, 0]}}))
    assert read_properties(vectors) == {"likeness": {"en": pytest.approx(1), "de": pytest.approx(1), "ja": 0.0}}
    for text in ('{"a": 1}', '{"a": {"de": "x"}}', '{"a": {"de": [1]}}', '{"a": {"en": [1, 2], "de": [1]}}'):
        vectors.write_text(text)
        code, said = run(capsys, folder, "--languages", vectors)
        assert code == 65 and "does not tell properties of languages" in said.err


def test_pictures_that_the_detector_was_trained_on(capsys, annotations, folder, tmp_path):
    path = tmp_path / "image_data.json"
    rows = [{"image_id": 1, "coco_id": None, "flickr_id": 105}, {"image_id": 103, "coco_id": 7, "flickr_id": None}]
    path.write_text(json.dumps(rows))
    (one,) = facts(capsys, folder, "--annotations", annotations, "--detector-images", path)["overlaps"]
    assert (one["task"], one["pictures"], one["shared"], one["some"]) == ("xvnli", 20, 2, ["103", "105"])
    path.write_text("images/119.jpg\nother.jpg\n")
    report = facts(capsys, folder, "--annotations", annotations, "--detector-images", path)
    assert report["overlaps"][0]["some"] == ["119"]
    assert report["warnings"] == [
        "xvnli: if the detector was, as the published ones were, trained on Visual Genome: its pictures are Flickr's, "
        "as Visual Genome's are; an overlap is not known."
    ]


def test_a_folder_holds_text_tables_and_plots(capsys, annotations, folder, tmp_path):
    path = tmp_path / "l.csv"
    path.write_text("language,Wikipedia size\nar,10\nes,100\nfr,1000\nru,50000\n")
    line = (folder, "--annotations", annotations, "--languages", path, "--against", "uc2", "--plot-format", "svg")
    code, said = run(capsys, *line, "--out", tmp_path / "look")
    plots = ["few-shot.svg", "property-Wikipedia_size.svg", "differences-xvnli.svg"]
    names = ["report.md", "report.json", "scores.csv", "tables.csv", *plots]
    assert code == 0 and said.out.splitlines()[1:] == [f"wrote {tmp_path / 'look' / name}" for name in names]
    text = (tmp_path / "look/report.md").read_text("utf-8")
    assert all(f"![{name}]({name})" in text for name in plots)
    assert all((tmp_path / "look" / name).read_text("utf-8").rstrip().endswith("</svg>") for name in plots)
    with open(tmp_path / "look/scores.csv") as file:
        assert len(list(csv.DictReader(file))) == 70
    assert len(json.loads((tmp_path / "look/report.json").read_text())["intervals"]) == 35


@pytest.mark.parametrize(
    ("files", "task"),
    [(["xgqa/zero_shot/{}/test_bn_0", "xgqa/few_shot/{}/test_ru_48"], "xgqa"),
     (["xflickrco/zero_shot/{}/test_ja_0", "xflickrco/few_shot/{}/test_ru_25"], "xflickrco")],
)  # fmt: skip
def test_released_predictions_are_those_that_were_published(capsys, files, task):
    if not DATA.is_dir():
        pytest.skip("the published predictions are not here")
    paths = [
        DATA / f"results/{file.format(model)}_result.json.gz" for file in files for model in ("uc2", "ctrl_xuniter")
    ]
    found = read_runs([str(path) for path in paths], DATA / "datasets")
    main = "accuracy" if task == "xgqa" else "ir_r1"
    scores = {
        (run.model, place): value for run in found.runs for place, value, _ in run.scores() if place.metric == main
    }
    assert len(scores) == 4 and not found.failed
    for key, value in scores.items():
        published = most_precise()[key].value
        assert value == published if task == "xgqa" else round(value, 2) == published


def test_parts_of_the_examples(capsys, tmp_path):
    table = Table(tmp_path / "runs/results.jsonl")

    def add(task, language, result, **more):
        table.add(EvaluationRun("uc2", "c", task, (), "a", language, **more), "done", result={"n": 2000, **result})

    for number, language in enumerate(("en", "bn", "de", "id", "ko", "pt", "ru", "zh")):
        types = {"query": {"accuracy": 10.0 + number, "n": 300}, "verify": {"accuracy": 70.0, "n": 100}}
        add("xgqa", language, {"accuracy": 30.0, "subsets": {"structural": types}})
        more = {"query": {"accuracy": 20.0 + number, "n": 300}, "verify": {"accuracy": 70.0, "n": 100}}
        add("xgqa", language, {"accuracy": 40.0, "subsets": {"structural": more}}, setup="few-shot", shots="5")
    halves = {"flickr": {"ir_r1": 45.0, "n": 1000}, "coco": {"ir_r1": 30.0, "n": 1000}}
    add("xflickrco", "en", {"ir_r1": 37.5, "subsets": halves})
    code, said = run(capsys, tmp_path / "runs")
    assert code == 0
    for line in (
        "| uc2 | 45.00 (44.00, +1.00) | 30.00 (30.80, -0.80) |",
        "| setup | shots | language | model | query | verify |",
        "| zero-shot | 0 | en | uc2 | 10.00 | 70.00 |",
        "| zero-shot | 0 | avg | uc2 | 14.00 | 70.00 |",
        "| few-shot | 5 | avg | uc2 | 24.00 | 70.00 |",
        "It is known of 400 of 2,000 examples.",
    ):
        assert line in said.out.splitlines()
    assert run(capsys, tmp_path / "runs", "--out", tmp_path / "look")[0] == 0
    plots = sorted(path.name for path in (tmp_path / "look").glob("*.png"))
    assert plots == ["few-shot.png", "question-types-uc2.png", "subsets-uc2.png"]
