"""VSR in a report: relations, samples and correlations of made-up runs, and pictures of made-up annotations."""

import json

import pytest

import roivault
from consumers.report import make_report
from consumers.report_style import model_style
from consumers.results import Table
from consumers.runs import EvaluationRun
from consumers.tasks.vsr import EXAMPLES

RELATIONS = {"on": 40, "under": 30, "left of": 20, "facing": 16, "congruent": 2}


def captions(counts):
    """Rows with so many captions of each relation, three of five of them true."""
    total = 0
    for relation, count in counts.items():
        for n in range(count):
            total += 1
            verb = "" if relation == "contains" else "is "
            yield {**EXAMPLES[0], "image": f"{total:012d}.jpg", "caption": f"The cat {verb}{relation} the dog{n}.",
                   "relation": relation, "label": int(n % 5 < 3), "reference_frame": None}  # fmt: skip


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def annotations(tmp_path):
    folder = tmp_path / "vsr"
    trained = {relation: 10 * (n + 1) for n, relation in enumerate(RELATIONS)}
    write(folder / "data/splits/random/train.jsonl", captions(trained))
    write(folder / "data/splits/random/test.jsonl", captions(RELATIONS))
    for name in ("raw", "validated"):
        write(folder / f"data/data_files/all_vsr_{name}_data.jsonl", captions(RELATIONS))
    return folder


@pytest.fixture
def results(tmp_path, annotations):
    table = Table(tmp_path / "runs/results.jsonl")

    def add(model, task="vsr", seed=0, shots=None, step=5.0):
        parts = {
            relation: {"accuracy": 50 + step * n + seed, "n": count}
            for n, (relation, count) in enumerate(RELATIONS.items())
        }
        subsets = {"relation": parts, "category": {"Projective": {"accuracy": 60.0 + seed, "n": 50}}}
        run = EvaluationRun(
            model, f"seed{seed}", task, ("s",), str(annotations), setup="few-shot" if shots else "zero-shot",
            shots=shots,
        )  # fmt: skip
        result = {"accuracy": 55.0 + 2 * seed + (0 if shots else 10), "n": 108, "subsets": subsets}
        table.add(run, "done", result=result)

    for seed in range(3):
        add("vilt", seed=seed)
        add("vilt", seed=seed, shots="100")
    add("lxmert-vsr", step=-5.0)
    add("vilt", "vsr-zeroshot")
    return tmp_path / "runs"


def test_relations_with_their_deviation_over_seeds(results):
    random, _ = make_report([str(results)]).vsr
    assert [(one.name, one.tested, one.trained, one.category) for one in random.relations] == [
        ("on", 40, 10, "Topological"), ("under", 30, 20, "Projective"), ("left of", 20, 30, "Projective"),
        ("facing", 16, 40, "Orientation"), ("congruent", 2, 50, "Unmapped"),
    ]  # fmt: skip
    assert [one.name for one in random.frequent] == ["on", "under", "left of", "facing"]
    assert random.accuracy["vilt", "under"] == (56.0, 1.0, 3)
    assert random.majority == pytest.approx(100 * 66 / 108)


def test_accuracy_and_how_often_relations_are_trained_on(results):
    random, by_concepts = make_report([str(results)]).vsr
    assert {model: round(one.pearson, 6) for model, one in random.likeness.items()} == {"vilt": 1, "lxmert-vsr": -1}
    assert random.likeness["vilt"].relations == 4 and random.likeness["vilt"].spearman == pytest.approx(1)
    assert by_concepts.likeness == {} and by_concepts.relations[0].trained is None, "its training set is not here"


def test_accuracy_by_training_captions(results):
    random, _ = make_report([str(results)]).vsr
    assert {name: one.value for name, one in random.samples["vilt"].items()} == {"100": 57.0, "100%": 67.0}
    assert random.sets == {"100": 100, "25%": 37, "50%": 75, "75%": 112, "100%": 150}
    assert "lxmert-vsr" not in random.samples, "it has no curve"


@pytest.mark.parametrize("form", ["png", "svg"])
def test_a_report_is_written_with_its_pictures(results, tmp_path, capsys, form):
    line = ["report", str(results), "--out", str(tmp_path / "look"), "--plot-format", form, "--quiet"]
    assert roivault.main(line) == 0, capsys.readouterr().err
    names = {path.stem for path in (tmp_path / "look").glob(f"*.{form}")}
    assert names == {
        "vsr-relations", "vsr-zeroshot-relations", "vsr-categories", "vsr-frequency", "vsr-samples",
        "vsr-data-relations", "vsr-data-concepts", "vsr-data-disagreement",
    }  # fmt: skip
    text = (tmp_path / "look" / "report.md").read_text()
    for line in (
        "| vilt | 67.00 ± 2.00 (69.30 ± 0.90, -2.30) | 65.00 (63.00 ± 0.90, +2.00) |",
        "| under | Projective | 30 | 20 | 56.00 ± 1.00 | 45.00 |",
        "| vilt | 4 | +1.00 | 0 | +1.00 | 0 |",
        "Always giving the most frequent answer gets 61.11 % of vsr right.",
    ):
        assert line in text.splitlines(), line
    (lacking,) = (line for line in text.splitlines() if line.startswith("Nothing was measured"))
    assert lacking.count(" 19,") == 1, "there are two of it, named once"
    found = json.loads((tmp_path / "look" / "report.json").read_text())["vsr"][0]
    assert found["likeness"]["vilt"]["relations"] == 4 and found["samples"]["vilt"][0]["set"] == "100"


def test_no_two_of_many_models_look_alike():
    names = [str(n) for n in range(14)]
    looks = {tuple(model_style(names)(name).values()) for name in names}
    assert len(looks) == len(names)


def test_a_report_without_annotations(results, annotations, capsys):
    for path in annotations.rglob("*.jsonl"):
        path.unlink()
    assert roivault.main(["report", str(results)]) == 0
    said = capsys.readouterr().out
    assert "| under | Projective | 30 |  | 56.00 ± 1.00 | 45.00 |" in said and "Pearson" not in said
