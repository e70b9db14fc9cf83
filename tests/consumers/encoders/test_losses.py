"""Losses against sums written out."""

import math

import pytest
import torch

from consumers.encoders import losses


def softplus(x):
    return math.log1p(math.exp(x))


def test_binary_losses_by_hand():
    logits, target = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([[1.0, 0.0, 0.3]])
    terms = [softplus(-0.5), softplus(-1.0), softplus(2.0) - 0.3 * 2.0]
    assert losses.mean_binary(logits, target).item() == pytest.approx(sum(terms) / 3, abs=1e-6)
    assert losses.summed_binary(logits, target).item() == pytest.approx(sum(terms), abs=1e-6)


def test_triplet_by_hand():
    def p(x):
        return 1 / (1 + math.exp(-x))

    logits = torch.tensor([[1.0, 2.0, -3.0, 0.9], [4.0, -4.0, -4.0, -4.0]])
    hinges = [max(0, 0.2 + p(x) - p(1.0)) for x in (2.0, -3.0, 0.9)] + [0, 0, 0]
    assert losses.triplet(logits).item() == pytest.approx(sum(hinges) / 6, abs=1e-6)


def test_correct_gives_soft_credit():
    logits = torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 1.0]])
    assert losses.correct(logits, torch.tensor([[0.0, 0.6], [1.0, 0.0], [1.0, 0.0]])).item() == pytest.approx(1.6)
