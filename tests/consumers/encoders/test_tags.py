"""Texts and tags as one sequence, beside what the published data sets made of them."""

import json
import random

import pytest
import torch

from cache import UsageError
from consumers.encoders.tags import attention_between, packed
from tests.consumers.conftest import SHARED

FIRST, LAST = 2, 3


@pytest.fixture(scope="module")
def golden():
    path = SHARED / "golden" / "oscar" / "packing.json"
    if not path.is_file():
        pytest.skip(f"no golden data at {path}; set ROIVAULT_SHARED")
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def tokens(golden, tmp_path_factory):
    """A text as the ids of the goldens' vocabulary."""
    from transformers import BertTokenizer

    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(golden["vocab"]) + "\n", "utf-8")
    tokenizer = BertTokenizer(str(path), do_lower_case=True)
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def text_and_tags(case):
    given, task = case["input"], case["task"]
    if task == "retrieval":
        return given["caption"], [given["tags"]]
    if task in ("gqa", "vqa"):
        return given["q"], [given["o"].replace(";", " ").strip()]
    both = [given["o"]["left"], given["o"]["right"]] if case["args"]["use_label_seq"] else ["", ""]
    return given["q"], both if task == "nlvr_pair" else [" ".join(both)]


def test_sequences_are_the_published_ones(golden, tokens):
    guarded = 0
    for case in golden["cases"]:
        most = case["args"]["max_seq_length"]
        text, tags = text_and_tags(case)
        rule = "text first" if case["task"] == "retrieval" else "balanced"
        found = packed(tokens(text), [tokens(one) for one in tags], most, FIRST, LAST, rule)
        wanted = case["input_ids"] if case["task"] == "nlvr_pair" else [case["input_ids"]]
        wanted = [[token for token in one if token] for one in wanted]
        if max(map(len, wanted)) > most:  # the published bug
            guarded += 1
            wanted = [wanted[0][:most]]
        assert found == wanted, case
        assert all(len(one) <= most for one in found)
    assert len(golden["cases"]) == 38 and guarded == 1


def test_attention_is_the_published_one(golden):
    seen = 0
    for case in golden["cases"]:
        parts = case["args"].get("att_mask_type", "CLR")
        if parts == "CLR":
            continue
        ids, wanted = torch.tensor([case["input_ids"]]), torch.tensor(case["attention_mask"])
        regions = torch.tensor([[int(bool(row)) for row in wanted.diagonal()[ids.shape[1] :]]])
        segments = torch.tensor([case["token_type_ids"]])
        found = attention_between(parts, segments, ids != 0, regions)
        assert torch.equal(found[0].int(), wanted.int()), case
        seen += 1
    assert seen == 6


def test_what_is_cut_is_what_taking_tokens_off_one_by_one_leaves():
    draw = random.Random(0)
    for _ in range(300):
        text, tags = (list(range(10, 10 + draw.randrange(9))) for _ in range(2))
        most = draw.randrange(4, 20)
        one, other = text[: most - 2] if not tags else text[:], tags[:]
        while other and len(one) + len(other) > most - 3:
            (one if len(one) > len(other) else other).pop()
        behind = [*other, LAST] if other else []
        assert packed(text, [tags], most, FIRST, LAST) == [[FIRST, *one, LAST, *behind]], (text, tags, most)


def test_unknown_rules_are_refused():
    with pytest.raises(UsageError, match="'longest' is not one of balanced, text first"):
        packed([5], [[6]], 9, FIRST, LAST, "longest")
