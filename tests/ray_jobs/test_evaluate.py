"""`roivault evaluate` and `finetune`: predictions scored, and lines that make no sense refused before loading."""

import json

import pytest

import roivault
from ray_jobs.evaluate import means


def run(capsys, *args):
    code = roivault.main([str(arg) for arg in args])
    return code, capsys.readouterr()


@pytest.fixture
def annotations(tmp_path):
    path = tmp_path / "XVNLI/annotations/ar/test.jsonl"
    path.parent.mkdir(parents=True)
    labels = ("neutral", "entailment", "-", "neutral")
    rows = [{"gold_label": g, "sentence2": "t", "pairID": str(n), "Flikr30kID": "7"} for n, g in enumerate(labels)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.fixture
def predictions(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"questionId": str(n), "prediction": "neutral"} for n in range(4)]))
    return path


def test_a_predictions_file_is_scored(capsys, annotations, predictions):
    line = ("evaluate", "--task", "xvnli", "--annotations", annotations, "--predictions", predictions)
    code, said = run(capsys, *line, "--language", "ar", "--json")
    assert code == 0
    assert json.loads(said.out) == {"task": "xvnli", "language": "ar", "accuracy": 50.0, "n": 4, "subsets": {}}
    code, said = run(capsys, *line, "--language", "ar")
    assert code == 0 and "accuracy" in said.out and "50.00" in said.out


def test_rows_without_a_label_can_be_left_out(capsys, annotations, predictions):
    line = ("evaluate", "--task", "xvnli", "--annotations", annotations, "--predictions", predictions, "--json")
    code, said = run(capsys, *line, "--language", "ar", "--eval-set", "labelled")
    found = json.loads(said.out)
    assert code == 0 and found["n"] == 3 and found["accuracy"] == 100 * (2 / 3)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--language", "zh"], 2, "xvnli is not tested in 'zh'; its languages are en, ar"),
        (["--language", "all"], 2, "--predictions is of one language"),
        (["--language", "fr"], 66, "fr/test.jsonl is not there"),
        (["--language", "ar", "--encoder", "uc2"], 2, "--encoder has no place beside it"),
        (["--language", "ar", "--eval-set", "full"], 2, "'full' of xvnli is not one of all, labelled"),
        (["--language", "ar", "--setup", "magic"], 2, "set-up 'magic' is not one of zero-shot"),
        (["--language", "ar", "--shots", "5"], 2, "--shots has no place beside it"),
    ],
)
def test_predictions_that_cannot_be_scored(capsys, annotations, predictions, more, code, message):
    line = ("evaluate", "--task", "xvnli", "--annotations", annotations, "--predictions", predictions)
    found, said = run(capsys, *line, *more)
    assert (found, message in said.err) == (code, True), said.err


EVALUATE = ["evaluate", "--task", "xvnli", "--language", "ar"]
ENCODER = ["--encoder", "uc2", "--checkpoint", "c", "--store", "s"]
FINETUNE = ["finetune", "--task", "xvnli", "--language", "ar", "--encoder", "uniter", "--store", "s.roi"]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (EVALUATE, 2, "evaluate needs --encoder, --checkpoint, --store, or --predictions FILE"),
        ([*EVALUATE, "--encoder", "bert", "--checkpoint", "c", "--store", "s"], 2, "unknown encoder 'bert'"),
        ([*EVALUATE, *ENCODER], 66, "--checkpoint c does not exist"),
        ([*EVALUATE, *ENCODER, "--shots", "5"], 2, "of the set-ups few-shot and max-shot, not of zero-shot"),
        ([*EVALUATE, *ENCODER, "--setup", "few-shot", "--shots", "7"], 2, "no set of 7 shots; there are 1, 5, 10"),
        (FINETUNE, 2, "xvnli has no ar train; its train sets are"),
        ([*FINETUNE, "--shots", "1"], 66, "train_1.jsonl is not there"),
        ([*FINETUNE, "--shots", "1", "--lr", "-1"], 2, "lr must be above 0, not -1"),
        ([*FINETUNE, "--shots", "1", "--accumulate", "3"], 2, "cannot be made of 3 equal parts"),
        ([*FINETUNE, "--shots", "1", "--dev", "other"], 2, "dev set 'other' is not one of english"),
        ([*FINETUNE, "--shots", "1", "--precision", "int8"], 2, "precision 'int8' is not one of"),
        ([*FINETUNE, "--grid", "all"], 2, "--grid 'all' is not one of fewshot, manyshot"),
        ([*FINETUNE, "--grid", "manyshot"], 2, "xvnli has no sets of many shots in 'ar'"),
        ([*FINETUNE, "--shots", "1", "--wandb", "p"], 2, "pip install wandb"),
        ([*FINETUNE, "--engine", "slurm"], 2, "--engine 'slurm' is not local or ray"),
    ],
)
def test_lines_that_make_no_sense(capsys, annotations, tmp_path, monkeypatch, line, code, message):
    monkeypatch.setattr("consumers.run_log.find_spec", lambda name: None)
    out = tmp_path / "out"
    found, said = run(capsys, *line, "--annotations", annotations, "--out", out)
    assert (found, message in said.err) == (code, True), said.err
    assert not out.exists()


def test_a_mean_counts_each_language_alike():
    def row(language, status="done", task="xm3600-captions", **result):
        return {"run": {"task": task, "language": language}, "status": status, "result": result}

    rows = [row("en", cider=50.0, rouge_l=30.0, n=900), row("de", cider=20.0, rouge_l=10.0, n=3), row("th", "failed")]
    assert means(rows) == {"xm3600-captions over 2 languages": {"cider": 35.0, "rouge_l": 20.0}}
    other = [row("en", task="xvnli", accuracy=1.0), row("ar", task="xvnli", accuracy=2.0)]
    assert means(rows[:1]) == means(other) == {}
