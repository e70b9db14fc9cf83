"""VSR on its published files: counts, categories, samples; and what its annotations tell, as published."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from cache import DataError, UsageError
from consumers.tasks import Selection, load_task
from consumers.tasks.vsr import EXAMPLES, concepts, facts, votes
from consumers.tasks.vsr_relations import CATEGORIES, UNMAPPED, category_of
from consumers.vsr_analysis import agreement, dataset_tables, disagreements, frame_tests, is_validated
from consumers.vsr_analysis import frame_counts as counts_of_frames

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "data" / "vsr"


@pytest.fixture(scope="module")
def published():
    if not DATA.is_dir():
        pytest.skip("the published annotations are not here")
    return DATA


@pytest.fixture(scope="module")
def everything(published):
    from consumers.tasks.files import read_json_lines

    folder = published / "data" / "data_files"
    return {name: list(read_json_lines(folder / f"all_vsr_{name}_data.jsonl")) for name in ("raw", "validated")}


def test_the_paper_prints_other_rows_of_the_split_by_concepts(published):
    task = load_task("vsr-zeroshot", published)
    assert [task.paper_rows[Selection(split)] for split in ("train", "dev", "test")] == [4713, 231, 616]
    assert [task.counts[Selection(split)].rows for split in ("train", "dev", "test")] == [3489, 340, 1222]


def test_always_the_same_answer_gets_the_published_share(published):
    shares = {"vsr": 53.80, "vsr-zeroshot": 51.47}
    for name, share in shares.items():
        examples = load_task(name, published).load(Selection("test"))
        most = Counter(one.answer for one in examples).most_common(1)[0][1]
        assert round(100 * most / len(examples), 2) == share


def test_test_captions_by_category(published):
    found = {
        name: Counter(one.facts["category"] for one in load_task(name, published).load(Selection("test")))
        for name in ("vsr", "vsr-zeroshot")
    }
    names = ("Projective", "Topological", "Adjacency", "Orientation", "Proximity", "Directional", "Unallocated")
    assert [found["vsr"][name] for name in names] == [843, 629, 289, 137, 133, 88, 76]
    assert [found["vsr-zeroshot"][name] for name in names] == [451, 492, 116, 49, 32, 42, 40]


def test_categories():
    listed = [relation for relations in CATEGORIES.values() for relation in relations]
    assert (len(CATEGORIES), len(listed), len(set(listed))) == (7, 71, 70)
    assert category_of("among") == "Unallocated" and category_of("congruent") == UNMAPPED


def test_relations_in_the_data(everything):
    used = {record["relation"] for record in everything["validated"]}
    listed = {relation for relations in CATEGORIES.values() for relation in relations}
    assert len(used) == 66 and used - listed == {"congruent"}
    assert listed - used == {"after", "deep down", "from", "to", "up"}


def test_smaller_training_sets_lie_within_larger_ones(published):
    task = load_task("vsr", published)
    sets = [{one.id for one in task.load(Selection("train", shots=s))} for s in ("100", "25%", "50%", "75%", None)]
    assert [len(one) for one in sets] == [100, 1920, 3840, 5760, 7680]
    assert all(small < large for small, large in zip(sets, sets[1:], strict=False))


def test_annotators_agree_as_published(everything):
    raw, validated = agreement(everything["raw"]), agreement(everything["validated"])
    assert (raw["rows"], raw["votes"], raw["with three"], validated["with three"]) == (12809, 39057, 12203, 10476)
    assert abs(raw["kappa of three"] - 0.668620) < 1e-6 and abs(validated["kappa of three"] - 0.739920) < 1e-6
    assert round(raw["all agree %"], 1) == 69.1 and raw["two thirds agree"] == 10972


def test_the_filter_makes_the_validated_file_of_the_raw_one(everything):
    kept = {(r["image"], r["caption"]) for r in everything["raw"] if is_validated(r)}
    assert kept == {(r["image"], r["caption"]) for r in everything["validated"]}


def test_a_person_goes_with_the_intrinsic_frame_as_published(everything):
    counts = counts_of_frames(everything["validated"])
    assert {frame: (n["with"], n["without"]) for frame, n in counts.items()} == {
        "intrinsic": (32, 36), "relative": (154, 364), "both": (12, 18),
    }  # fmt: skip
    tests = frame_tests(counts)
    assert [round(tests[name][1], 4) for name in ("left out", "as intrinsic")] == [0.0054, 0.0045]


def test_part_whole_relations_are_agreed_about_most(everything):
    rows = [row for row in disagreements(everything["raw"]) if row["captions"] > 20]
    assert len(rows) == 53
    assert {row["relation"] for row in rows[-8:]} >= {"within", "inside", "outside", "touching", "part of"}
    assert rows[0]["relation"] == "beyond" and rows[0]["disagreement"] == pytest.approx(0.35)


def test_statistics_of_files_that_are_not_there(tmp_path):
    assert dataset_tables(load_task("vsr", tmp_path)) == {}


def test_a_caption_tells_its_concepts(everything):
    assert concepts(EXAMPLES[0]) == ("cat", "refrigerator") and concepts(EXAMPLES[3]) == ("train", "laptop")
    assert len({name for record in everything["raw"] for name in concepts(record)}) == 77
    with pytest.raises(DataError, match="is not 'The ... "):
        concepts({"caption": "A cat inside a box.", "relation": "inside"})


def test_votes_are_lists_or_texts_of_lists():
    assert votes({"vote_false_validator_id": "[1, 2]", "vote_true_validator_id": []}) == (2, 0)
    with pytest.raises(DataError, match="not a list of validators"):
        votes({"vote_false_validator_id": "3", "vote_true_validator_id": []})


def test_a_row_tells_its_facts():
    assert facts(EXAMPLES[1]) == {"relation": "at the left side of", "category": "Adjacency", "frame": "relative"}
    assert "frame" not in facts(EXAMPLES[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"label": 2}, "neither 0 nor 1"), ({"reference_frame": 7}, "is not 0, 1 or 2"), ({"image": None}, "no picture")],
)
def test_rows_that_make_no_sense(tmp_path, change, message):
    (tmp_path / "test.jsonl").write_text(json.dumps(EXAMPLES[0]) + "\n" + json.dumps({**EXAMPLES[0], **change}))
    with pytest.raises(DataError, match=f"test.jsonl, row 2: .*{message}"):
        load_task("vsr", tmp_path).load(Selection("test"))


def test_sets_that_there_are_not(tmp_path):
    with pytest.raises(UsageError, match="its train sets are en whole or of 100, 25%, 50%, 75% shots"):
        load_task("vsr", tmp_path).load(Selection("train", shots="7"))


def test_frames_are_scored_by_the_mean_over_both():
    task = load_task("vsr-frames", ".")
    examples = [task.example(str(n), EXAMPLES[n]) for n in (1, 2, 5)]  # relative, intrinsic, relative
    scores = task.more_scores(examples, [True, False, True])
    assert scores == pytest.approx({"precision": 100 / 3, "recall": 50, "f1": 40})
