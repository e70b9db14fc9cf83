"""Answers and score matrices of shrunken encoders over a generated store."""

import numpy as np
import pytest
import torch

from cache import DataError
from consumers import evaluation
from consumers.data import TaskData
from consumers.encoders import list_encoders
from consumers.evaluation import predict_answers, score_captions
from consumers.negatives import HardNegatives
from consumers.tasks import Example


class Toy:
    head, labels = "nlvr2", ("False", "True")


@pytest.fixture
def pairs(words, feature_store):
    def build(config, pictures=1, count=9):
        some = [
            Example(str(n), " ".join(["w"] * (2 + n % 5)), tuple((str((n + k) % 6),) for k in range(pictures)))
            for n in range(count)
        ]
        return TaskData(some, feature_store, config, words(config), 12)

    return build


@pytest.mark.parametrize("name", list_encoders())
def test_answers_do_not_depend_on_the_batch(name, small_encoder, pairs):
    encoder = small_encoder(name, heads=("nlvr2",))
    data = pairs(encoder.config, pictures=2)
    seen = []
    answers = predict_answers(encoder, Toy, data, batch_size=4, progress=lambda *done: seen.append(done))
    assert answers == predict_answers(encoder, Toy, data, batch_size=1)
    assert [a["questionId"] for a in answers] == [e.id for e in data.examples]
    assert {a["prediction"] for a in answers} <= set(Toy.labels)
    assert seen == [(4, 9), (8, 9), (9, 9)]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(evaluation, "TEXTS", 2)
    monkeypatch.setattr(evaluation, "IMAGES", 4)


@pytest.mark.parametrize("name", list_encoders())
def test_scores_are_those_of_each_pair_alone(name, small_encoder, pairs, tmp_path, small_blocks):
    encoder = small_encoder(name, heads=("retrieval",))
    data = pairs(encoder.config)
    scores = score_captions(encoder, data, tmp_path / "scores.npy")
    assert scores.shape == (9, 6)
    for text, image in ((0, 0), (3, 5), (8, 2)):
        with torch.no_grad():
            alone = encoder.head("retrieval")(encoder(*data.inputs([text], [image])))
        assert scores[text, image] == pytest.approx(alone.item(), abs=1e-4)


def test_interrupted_scoring_goes_on_where_it_was(small_encoder, pairs, tmp_path, small_blocks):
    encoder = small_encoder("uniter", heads=("retrieval",))
    data, path = pairs(encoder.config), tmp_path / "scores.npy"
    whole = np.array(score_captions(encoder, data, tmp_path / "whole.npy"))

    def stop(done, total):
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_captions(encoder, data, path, progress=stop)
    left = np.isnan(np.load(path)).sum()
    assert 0 < left < whole.size
    seen = []
    again = score_captions(encoder, data, path, progress=lambda done, total: seen.append(done))
    assert np.array_equal(again, whole)
    assert seen[0] > whole.size - left and seen[-1] == whole.size


def test_a_file_of_other_scores_is_refused(small_encoder, pairs, tmp_path):
    encoder = small_encoder("uniter", heads=("retrieval",))
    np.save(tmp_path / "s.npy", np.zeros((3, 3), np.float32))
    with pytest.raises(DataError, match=r"holds float32 \(3, 3\), not float32 \(9, 6\)"):
        score_captions(encoder, pairs(encoder.config), tmp_path / "s.npy")
    (tmp_path / "t.npy").write_bytes(b"no")
    with pytest.raises(DataError, match="t.npy is not a matrix of scores"):
        score_captions(encoder, pairs(encoder.config), tmp_path / "t.npy")


def test_neighbours_are_the_nearest_means(pairs, shrunk):
    data = pairs(shrunk("uniter"), count=40)
    found = HardNegatives(data, pool=3).neighbours
    means = np.stack([data.store[key].features.mean(0) for key in data.keys])
    distances = np.linalg.norm(means[:, None] - means[None], axis=2) + np.diag([np.inf] * len(means))
    assert np.array_equal(found, distances.argsort(1)[:, :3])
