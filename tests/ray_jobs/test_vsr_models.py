"""The models of VSR through the command line, as users run them: fine-tuned, continued, tested, from what they read."""

import json

import pytest

import roivault
from consumers.models import model_class
from consumers.models.negation import negated
from consumers.tasks import Selection, load_task
from consumers.tasks.vsr import EXAMPLES
from tests.conftest import write_examples
from tests.consumers.models.small_vsr import save_model, write_source

TRAINED = ("visualbert-vsr", "lxmert-vsr", "vilt")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def annotations(tmp_path):
    for name in ("vsr", "vsr-zeroshot"):
        write_examples(load_task(name, ".").examples, tmp_path / "annotations")
    return tmp_path / "annotations"


def run(capsys, *args):
    code = roivault.main([str(arg) for arg in args])
    said = capsys.readouterr()
    return code, json.loads(said.out) if code == 0 and said.out else None, said.err


@pytest.fixture
def small(tmp_path):
    """Name -> options of a command line: shrunken weights, what they read."""
    keys = [record["image"].partition(".")[0] for record in EXAMPLES]
    texts = [text for r in EXAMPLES for text in (r["caption"], negated(r["caption"], r["relation"]))]

    def make(name):
        return save_model(name, tmp_path / "weights" / name, texts), write_source(name, tmp_path / "source", keys)

    (tmp_path / "source").mkdir()
    return make


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_is_fine_tuned_continued_and_tested(name, small, annotations, tmp_path, capsys):
    weights, source = small(name)
    line = ["finetune", "--encoder", name, "--task", "vsr", "--annotations", annotations, *source, "--init", weights]
    line += ["--out", tmp_path / "runs", "--batch", 2, "--validate-every", 2, "--json", "--quiet", "--legacy"]
    code, said, err = run(capsys, *line, "--epochs", 2)
    assert code == 0, err
    (row,) = said["runs"]
    assert row["status"] == "done" and row["result"]["updates"] == 6 and 0 <= row["result"]["dev"] <= 100
    assert row["run"]["recipe"]["lr"] == model_class(name).recipe.lr and row["run"]["recipe"]["constant"]
    best = tmp_path / "runs" / f"{name}-vsr-en" / "best"
    assert row["result"]["weights"] == str(best) and (best / "config.json").is_file()
    line = ["evaluate", "--encoder", name, "--task", "vsr", "--annotations", annotations, *source, "--checkpoint", best]
    code, rows, err = run(capsys, *line, "--out", tmp_path / "results", "--json", "--quiet")
    assert code == 0, err
    result = rows[0]["result"]
    assert result["n"] == len(EXAMPLES) == sum(one["n"] for one in result["subsets"]["category"].values())
    assert {"inside", "left of"} <= set(result["subsets"]["relation"])
    line = ["evaluate", "--task", "vsr", "--annotations", annotations, "--json", "--predictions"]
    assert run(capsys, *line, tmp_path / "results" / result["predictions"])[1]["accuracy"] == result["accuracy"]


def test_clip_is_tested_as_it_is(small, annotations, tmp_path, capsys):
    weights, source = small("clip-negation")
    line = ["evaluate", "--encoder", "clip-negation", "--task", "vsr", "--annotations", annotations, *source]
    line += ["--checkpoint", weights, "--out", tmp_path / "results", "--json", "--quiet"]
    code, rows, err = run(capsys, *line)
    assert code == 0, err
    assert rows[0]["result"]["n"] == len(EXAMPLES)
    code, rows, err = run(capsys, *line, "--shuffled")
    assert code == 0 and rows[0]["run"]["shuffled"], err
    line = ["finetune", "--encoder", "clip-negation", "--task", "vsr", "--annotations", annotations, *source]
    code, _, err = run(capsys, *line, "--out", tmp_path / "runs")
    assert code == 2 and "clip-negation is used as it is, and not fine-tuned" in err


def test_what_is_learned_of_frames_is_carried_over(small, annotations, tmp_path, capsys):
    weights, source = small("vilt")
    runs = {}
    for task, init in (("vsr-frames", weights), ("vsr-left-right", tmp_path / "runs" / "vilt-vsr-frames-en" / "best")):
        line = ["finetune", "--encoder", "vilt", "--task", task, "--annotations", annotations, *source, "--init", init]
        code, said, err = run(capsys, *line, "--out", tmp_path / "runs", "--epochs", 1, "--batch", 2, "--json", "-q")
        assert code == 0, err
        runs[task] = said["runs"][0]["result"]["weights"]
    line = ["evaluate", "--encoder", "vilt", "--task", "vsr-frames", "--checkpoint", runs["vsr-frames"], *source]
    code, rows, err = run(capsys, *line, "--annotations", annotations, "--out", tmp_path / "results", "--json", "-q")
    assert code == 0, err
    assert {"precision", "recall", "f1"} <= set(rows[0]["result"])
    assert rows[0]["result"]["n"] == len(load_task("vsr-frames", annotations).load(Selection("test"))) == 3


@pytest.mark.parametrize(
    ("name", "change", "code", "message"),
    [
        ("vilt", {"--images": None, "--store": "s.roi"}, 2, "vilt reads pictures (--images DIR), and not a store"),
        ("vilt", {"--images": "nowhere"}, 66, "--images nowhere is not a folder"),
        ("lxmert-vsr", {"--store": None, "--images": "."}, 2, "lxmert-vsr reads a store (--store), and not pictures"),
        ("lxmert-vsr", {"--checkpoint": "nobody/nothing/here"}, 66, "--checkpoint nobody/nothing/here does not exist"),
        ("clip-negation", {"--task": "vsr-frames"}, 2, "clip-negation does not answer vsr-frames"),
        ("blip", {}, 2, "unknown encoder 'blip'"),
    ],
)
def test_lines_that_make_no_sense(name, change, code, message, annotations, tmp_path, capsys):
    given = {"--encoder": name, "--task": "vsr", "--annotations": annotations, "--checkpoint": tmp_path}
    given |= {"--images": tmp_path} if name == "vilt" else {"--store": "s.roi"}
    options = [part for pair in (given | change).items() if pair[1] is not None for part in pair]
    found, _, err = run(capsys, "evaluate", *options, "--out", tmp_path / "results")
    assert (found, message in err) == (code, True), err


def test_weights_that_are_not_fine_tuned_are_refused(small, annotations, tmp_path, capsys):
    weights, source = small("vilt")
    line = ["evaluate", "--encoder", "vilt", "--task", "vsr", "--annotations", annotations, *source]
    code, _, err = run(capsys, *line, "--checkpoint", weights, "--out", tmp_path / "results")
    assert code != 0 and "lacks 6 tensors that vilt answers vsr with, such as classifier.0.bias" in err
