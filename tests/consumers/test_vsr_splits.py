"""`tasks vsr-validate` and `tasks vsr-split`, on made-up captions."""

import json
from itertools import product

import pytest

import roivault
from cache import DataError
from consumers.tasks import Selection, load_task
from consumers.vsr_splits import concept_split

THINGS = [f"thing{n}" for n in range(10)]


def rows():
    """Two captions for each pair of things; of the first two of three validators agree, of the second one."""
    for n, (one, other) in enumerate(product(THINGS, THINGS)):
        for agreeing in (2, 1):
            votes = [[*range(agreeing)], [*range(agreeing, 3)]]
            yield {
                "image": f"{n:012d}.jpg", "caption": f"The {one} is {'on' if agreeing == 2 else 'under'} the {other}.",
                "label": 1, "relation": "on" if agreeing == 2 else "under", "vote_true_validator_id": votes[0],
                "vote_false_validator_id": votes[1],
            }  # fmt: skip


def run(capsys, *args):
    code = roivault.main(["tasks", *map(str, args)])
    return code, capsys.readouterr()


def test_captions_are_kept_and_split(tmp_path, capsys):
    (tmp_path / "raw.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    kept = tmp_path / "kept.jsonl"
    code, said = run(capsys, "vsr-validate", tmp_path / "raw.jsonl", "-o", kept, "--json")
    assert code == 0 and json.loads(said.out) == {"file": str(kept), "rows": 100}
    assert run(capsys, "vsr-validate", tmp_path / "raw.jsonl", "-o", tmp_path / "all.jsonl", "--agreed", 0.3)[0] == 0
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 200
    code, said = run(capsys, "vsr-split", kept, "-o", tmp_path / "split")
    assert code == 0 and "train.jsonl: 25 captions about 5 concepts" in said.out, said.err
    task = load_task("vsr-zeroshot", tmp_path / "split")
    sets = {split: task.load(Selection(split)) for split in ("train", "dev", "test")}
    assert [len(one) for one in sets.values()] == [25, 4, 9]


def test_no_concept_is_in_two_splits_and_a_seed_makes_the_same_again():
    records = list(rows())
    found = concept_split(records, seed=3)
    concepts = {split: {one[part] for one in kept for part in ("subj", "obj")} for split, kept in found.items()}
    assert concepts["train"].isdisjoint(concepts["dev"] | concepts["test"])
    assert concepts["dev"].isdisjoint(concepts["test"]) and set().union(*concepts.values()) == {*THINGS}
    assert found == concept_split(records, seed=3) != concept_split(records, seed=4)


def test_splits_that_cannot_be_made(tmp_path, capsys):
    with pytest.raises(DataError, match="1 concepts leave no caption for"):
        concept_split(list(rows())[:2])
    code, said = run(capsys, "vsr-split", tmp_path / "none.jsonl", "-o", tmp_path / "split")
    assert code == 66 and "none.jsonl is not there" in said.err
    code, said = run(capsys, "vsr-split", "x", "-o", tmp_path, "--train", 0.8, "--dev", 0.2)
    assert code == 2 and "leave no concepts for testing" in said.err
