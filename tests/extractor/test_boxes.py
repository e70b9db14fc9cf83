import math

import pytest
import torch

from extractor.boxes import MAX_LOG_SCALE, clip_boxes, decode_deltas, encode_deltas, grid_anchors, has_area


def random_boxes(count, seed):
    corners = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed)) * 200
    low, high = corners.min(dim=1).values, corners.max(dim=1).values
    return torch.cat((low, high + 1), dim=1)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)])
def test_decoding_undoes_encoding(weights):
    boxes, targets = random_boxes(50, 1), random_boxes(50, 2)
    deltas = encode_deltas(boxes, targets, weights)
    assert torch.allclose(decode_deltas(boxes, deltas, weights), targets, atol=1e-3)


def test_decoding_limits_growth():
    grown = decode_deltas(torch.tensor([[0.0, 0.0, 16.0, 16.0]]), torch.tensor([[0.0, 0.0, 50.0, 50.0]]))
    assert torch.allclose(grown, torch.tensor([[8.0 - 500, 8.0 - 500, 8.0 + 500, 8.0 + 500]]), atol=1e-2)
    assert math.isclose(math.exp(MAX_LOG_SCALE), 62.5)


def test_anchors_are_centred_on_the_top_left_of_their_cell_in_row_column_anchor_order():
    anchors = grid_anchors(2, 3, 16, sizes=(32, 64), ratios=(0.5, 1.0))
    assert anchors.shape == (2 * 3 * 4, 4)
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    assert torch.allclose(centres[::4], torch.tensor([[0, 0], [16, 0], [32, 0], [0, 16], [16, 16], [32, 16.0]]))
    sides = anchors[:4, 2:] - anchors[:4, :2]
    assert torch.allclose(sides[:, 1] / sides[:, 0], torch.tensor([0.5, 1.0, 0.5, 1.0]))
    assert torch.allclose(sides.prod(dim=1), torch.tensor([1024.0, 1024.0, 4096.0, 4096.0]))


def test_clipping_and_area():
    boxes = torch.tensor([[-5.0, -5.0, 30.0, 12.0], [25.0, 3.0, 40.0, 8.0], [1.0, 2.0, 3.0, 4.0]])
    clipped = clip_boxes(boxes, height=10, width=20)
    assert clipped.tolist() == [[0, 0, 20, 10], [20, 3, 20, 8], [1, 2, 3, 4]]
    assert has_area(clipped).tolist() == [True, False, True]
