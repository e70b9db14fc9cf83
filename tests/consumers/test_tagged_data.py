"""Texts that are followed by the names of the objects in the picture."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cache import DataError, Regions, StoreMismatch, StoreWriter, open_store
from consumers import evaluation
from consumers.data import TaskData
from consumers.encoders import load_tokenizer
from consumers.encoders.small_tokenizer import SPECIAL
from consumers.evaluation import score_captions
from consumers.objectives import Matches, objective_of
from consumers.tasks import Example

NAMES = ["dog", "stop sign,stopsign", "bus"]
WORDS = ("dog", "stop", "sign", "bus", "a", "red", "one", "here")
OBJECTS = {"0": [0, 1, 0], "1": [2], "2": [1, 1, 2, 0, 0], "3": [0]}


def write(path, objects, names=NAMES):
    rng = np.random.default_rng(0)
    with StoreWriter(path, "float32", vocabularies={"classes": names} if names else {}) as writer:
        for key, ids in objects.items():
            n = 3 if ids is None else len(ids)
            corners = np.sort(rng.random((n, 2, 2), np.float32), 1).reshape(n, 4) * 90
            features = rng.random((n, 16), np.float32)
            ids = None if ids is None else np.array(ids, np.int32)
            writer.write([Regions(key, 100, 100, corners, features, class_ids=ids)])
    return open_store(path)


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "objects.roi", OBJECTS)


@pytest.fixture
def config(shrunk):
    return replace(shrunk("oscar-plus"), separator_id=3, regions=5)


@pytest.fixture
def tokenizer(config, tmp_path):
    from transformers import BertTokenizer

    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n", "utf-8")
    BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=True).save_pretrained(tmp_path / "tokenizer")
    return load_tokenizer(config, tmp_path / "tokenizer")


def caption(key, text, pictures=()):
    return Example(key, text, tuple((one,) for one in (pictures or (key,))))


SOME = [caption("0", "a red dog"), caption("1", "one bus here"), caption("2", "a sign here"), caption("3", "a dog")]


def said(row):
    return " ".join([*SPECIAL, *WORDS][token] for token in row.tolist() if token)


def test_names_follow_in_the_order_of_the_regions(store, config, tokenizer):
    data = TaskData(SOME, store, config, tokenizer, 20, tags="balanced")
    ids, mask, features, locations, _ = data.inputs([0, 0, 1], [0, 2, 1])
    assert [said(row) for row in ids] == [
        "[CLS] a red dog [SEP] dog stop sign dog [SEP]",
        "[CLS] a red dog [SEP] stop sign stop sign bus dog dog [SEP]",
        "[CLS] one bus here [SEP] bus [SEP]",
    ]
    assert mask.sum(1).tolist() == (ids != 0).sum(1).tolist()
    assert features.shape == (3, 5, 16) and locations.shape == (3, 5, 6)
    width = locations[0, 0, 2] - locations[0, 0, 0]
    torch.testing.assert_close(locations[0, 0, 4], width)


def test_they_are_cut_as_published(store, config, tokenizer):
    data = TaskData(SOME, store, config, tokenizer, 9, tags="balanced")
    assert said(data.text([0], [2])[0][0]) == "[CLS] a red dog [SEP] stop sign stop [SEP]"
    data = TaskData(SOME, store, config, tokenizer, 5, tags="text first")
    assert said(data.text([0], [2])[0][0]) == "[CLS] a red dog [SEP]"


def test_a_text_about_two_pictures_has_the_names_of_one_each(store, config, tokenizer):
    some = [caption("x", "a red dog here", ("2", "1"))]
    data = TaskData(some, store, config, tokenizer, 9, tags="balanced")
    ids, _ = data.text([0, 0], data.images[0].tolist())
    assert [said(row) for row in ids] == [
        "[CLS] a red dog [SEP] stop sign stop [SEP]",
        "[CLS] a red dog [SEP] bus [SEP]",  # the text as the first picture's names left it, as published
    ]


def test_without_tags_nothing_changes(store, config, tokenizer):
    data = TaskData(SOME, store, config, tokenizer, 20)
    assert said(data.inputs([0], [2]).input_ids[0]) == "[CLS] a red dog [SEP]"


def test_stores_without_names_are_refused(tmp_path, config, tokenizer):
    for name, objects, names, lacks in (
        ("a", {"0": None}, NAMES, "no classes of its regions"),
        ("b", {"0": [1]}, None, "no names of classes"),
    ):
        bare = write(tmp_path / f"{name}.roi", objects, names)
        with pytest.raises(StoreMismatch, match=f"{name}.roi has {lacks}: extract with a preset that detects"):
            TaskData(SOME[:1], bare, config, tokenizer, 20, tags="balanced")


def test_classes_beyond_the_names_are_told(tmp_path, config, tokenizer):
    data = TaskData(SOME[:1], write(tmp_path / "c.roi", {"0": [7]}), config, tokenizer, 20, tags="balanced")
    with pytest.raises(DataError, match=r"'0' in .*c.roi has classes beyond the 3"):
        data.text([0], [0])


def test_scores_are_those_of_each_pair_with_its_own_names(
    store, config, tokenizer, small_encoder, tmp_path, monkeypatch
):
    monkeypatch.setattr(evaluation, "TEXTS", 3)
    monkeypatch.setattr(evaluation, "IMAGES", 3)
    encoder = small_encoder("oscar-plus", heads=("retrieval",))
    encoder.config = config
    data = TaskData(SOME, store, config, tokenizer, 12, tags="text first")
    scores = score_captions(encoder, data, tmp_path / "scores.npy")
    for text in range(4):
        for image in range(4):
            with torch.no_grad():
                alone = encoder.head("retrieval")(encoder(*data.inputs([text], [image])))
            assert scores[text, image] == pytest.approx(alone.item(), abs=1e-4), (text, image)


def test_each_caption_has_a_right_and_a_wrong_pair(store, config, tokenizer):
    class Toy:
        metric = "recall"

    data = TaskData(SOME, store, config, tokenizer, 12, tags="text first")
    objective = objective_of(Toy, config)
    assert isinstance(objective, Matches)
    kinds = set()
    for seed in range(20):
        pairs = objective.pairs(data, [0, 2], np.random.default_rng(seed))
        for place, row in ((0, 0), (2, 2)):
            assert (pairs.texts[place], pairs.images[place]) == (row, row)
            wrong = pairs.texts[place + 1], pairs.images[place + 1]
            assert wrong[0] != wrong[1] and row in wrong
            kinds.add(wrong[0] == row)
    assert kinds == {True, False}
    logits = torch.tensor([[2.0], [-1.0], [0.5], [1.0]])
    wanted = -torch.cat((logits[::2], -logits[1::2])).sigmoid().log().mean()
    torch.testing.assert_close(objective.loss(logits, pairs.target), wanted)
    assert objective.score(logits, pairs.target).item() == 1
