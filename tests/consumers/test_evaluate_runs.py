"""`roivault evaluate` from a store to its results, and from these to a report."""

import json
import signal

import numpy as np
import pytest

import roivault
from cache import Regions, StoreWriter
from consumers import evaluation, setting
from consumers.progress import CountProgress
from consumers.tasks import Task

ROWS = 12


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys, small_encoder, words):
    """Options -> (exit code, rows): UNITER, shrunken, on XVNLI in Arabic or on Flickr30K."""
    monkeypatch.setattr(setting, "load_encoder", lambda name, _, heads, legacy: small_encoder(name, tuple(heads)))
    monkeypatch.setattr(setting, "load_tokenizer", lambda config, name: words(config))
    monkeypatch.setattr(Task, "max_tokens", 40)
    rows = [{"gold_label": "neutral", "sentence2": f"w{n}", "pairID": f"p{n}", "Flikr30kID": n} for n in range(ROWS)]
    captions = [{"id": str(n), "img_path": f"{n}.jpg", "sentences": ["a", f"b{n}"]} for n in range(ROWS)]
    for name, records in (("XVNLI/annotations/ar/test", rows), ("flickr30k/annotations/test_ann", captions)):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "weights").write_text("1")
    rng = np.random.default_rng(0)
    with StoreWriter(tmp_path / "s.roi", "float32", fingerprint={"preset": "vg-r101"}) as writer:
        box = np.array([[0, 0, 50, 60]] * 6, np.float32)
        writer.write([Regions(str(n), 100, 100, box, rng.random((6, 16), np.float32)) for n in range(ROWS)])

    def run(task, language, *more):
        line = ["evaluate", "--encoder", "uniter", "--checkpoint", tmp_path / "weights", "--store", tmp_path / "s.roi"]
        line += ["--task", task, "--language", language, "--annotations", tmp_path, "--out", tmp_path / "out", *more]
        code = roivault.main([str(part) for part in [*line, "--device", "cpu", "--json", "--quiet"]])
        return code, json.loads(capsys.readouterr().out)

    return run


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "out").glob("uniter*"))


def report(tmp_path, capsys):
    assert roivault.main(["report", str(tmp_path / "out"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_are_done_once_and_kept_apart(evaluate, tmp_path, capsys):
    code, (row,) = evaluate("xvnli", "ar")
    assert code == 0, row
    assert row["result"]["n"] == ROWS and files(tmp_path) == [row["result"]["predictions"]]
    assert len(json.loads((tmp_path / "out" / row["result"]["predictions"]).read_text())) == ROWS
    assert evaluate("xvnli", "ar") == (0, [row])
    few = evaluate("xvnli", "ar", "--setup", "few-shot", "--shots", "5")[1][0]["result"]["predictions"]
    assert few.startswith("uniter-xvnli-ar-few-shot-5-") and len(files(tmp_path)) == 2
    told = report(tmp_path, capsys)
    scores = told["scores"]
    (warning,) = told["warnings"]
    assert warning.startswith("xvnli: the detector vg-r101 was trained on Visual Genome: its pictures are Flickr's")
    assert [(one["setup"], one["shots"]) for one in scores] == [("zero-shot", "0"), ("few-shot", "5")]


def test_another_checkpoint_under_the_same_name_is_evaluated_anew(evaluate, tmp_path, capsys):
    evaluate("xvnli", "ar")
    (tmp_path / "weights").write_text("other")
    evaluate("xvnli", "ar")
    assert len(files(tmp_path)) == 2 and len((tmp_path / "out/results.jsonl").read_text().splitlines()) == 2
    assert len(report(tmp_path, capsys)["scores"]) == 1


def test_retrieval_is_reported_in_both_directions(evaluate, tmp_path, capsys):
    code, (row,) = evaluate("flickr30k", "en")
    result = row["result"]
    assert code == 0 and (result["n"], result["images"]) == (2 * ROWS, ROWS)
    assert [name[-11:] for name in files(tmp_path)] == ["result.json", "_scores.npy"]
    found = {one["metric"]: one["value"] for one in report(tmp_path, capsys)["scores"]}
    assert found["mean_recall"] == result["mean_recall"] and {"ir_r1", "tr_r10"} <= found.keys()


def test_an_interrupted_run_goes_on_where_it_was(evaluate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "TEXTS", 2)
    monkeypatch.setattr(
        CountProgress, "__call__", lambda self, done, total: done > 99 and signal.raise_signal(signal.SIGINT)
    )
    code, said = evaluate("flickr30k", "en")
    assert (code, said) == (130, {"error": "interrupted", "exit_code": 130})
    (scores,) = [np.load(tmp_path / "out" / name) for name in files(tmp_path) if name.endswith(".npy")]
    left = np.isnan(scores).sum()
    assert 0 < left < scores.size and not (tmp_path / "out/results.jsonl").exists()
    seen = []
    monkeypatch.setattr(CountProgress, "__call__", lambda self, done, total: seen.append(done))
    assert evaluate("flickr30k", "en")[0] == 0 and seen[0] == scores.size - left + 2 * ROWS
