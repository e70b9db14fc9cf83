import numpy as np
import torch

from extractor.configs import C4Config
from extractor.rpn import ProposalNetwork


def test_proposals_equal_the_reference_implementation(golden):
    stored = np.load(golden / "r101c4" / "ops_rpn.npz")
    height, width = (int(v) for v in stored["image_hw"])
    network = ProposalNetwork(C4Config())
    logits, deltas = torch.from_numpy(stored["logits"])[0], torch.from_numpy(stored["deltas"])[0]
    boxes, scores = network.propose(logits, deltas, (height, width))
    np.testing.assert_allclose(boxes.numpy(), stored["proposals"], atol=1e-4)
    np.testing.assert_array_equal(scores.numpy(), stored["scores"])


def test_few_or_broken_logits_give_few_proposals(small_preset):
    network = ProposalNetwork(small_preset.architecture)
    logits, deltas = torch.zeros(12, 1, 1), torch.zeros(48, 1, 1)
    boxes, scores = network.propose(logits, deltas, (16, 16))
    assert 0 < len(boxes) <= 12 and len(boxes) == len(scores)
    assert (boxes >= 0).all() and (boxes <= 16).all()
    boxes, _ = network.propose(torch.full((12, 1, 1), float("nan")), deltas, (16, 16))
    assert boxes.shape == (0, 4)


def test_equal_logits_keep_the_order_of_the_anchors(small_preset):
    network = ProposalNetwork(small_preset.architecture)
    logits, deltas = torch.zeros(12, 6, 6), torch.zeros(48, 6, 6)
    first, _ = network.propose(logits, deltas, (96, 96))
    again, _ = network.propose(logits.clone(), deltas.clone(), (96, 96))
    assert torch.equal(first, again)
