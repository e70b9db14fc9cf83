"""VL-BERT's words look at a region; the published code took the batch's last slot and the batch's shortest text."""

import math

import pytest
import torch

from consumers.encoders.vl_bert import coordinate_sines


def test_coordinate_sines_by_hand():
    sines = coordinate_sines(torch.tensor([[0.2, 0.1, 0.6, 0.5]]), 2)[0]
    box = [40.0, 30.0, 40.0, 40.0]  # centre x, centre y, width, height in percent
    expected = []
    for value in box:
        angles = [value, value / 1000**0.5]
        expected += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    torch.testing.assert_close(sines, torch.tensor(expected), rtol=0, atol=1e-5)


@torch.no_grad()
def test_legacy_couples_the_batch(small_encoder, inputs):
    encoder = small_encoder("vl-bert", legacy=True)
    tensors = inputs(encoder.config, lengths=(9, 6), counts=(7, 7))
    together = encoder(*tensors).pooled
    longer, shorter = (encoder(*(x[i : i + 1] for x in tensors)).pooled[0] for i in range(2))
    assert (together[0] - longer).abs().max() > 1e-4  # its words 6 to 8 moved behind the regions
    torch.testing.assert_close(together[1], shorter, rtol=0, atol=2e-5)


@torch.no_grad()
def test_both_agree_on_full_slots_and_equal_lengths(small_encoder, inputs):
    old, new = small_encoder("vl-bert", legacy=True), small_encoder("vl-bert")
    full = inputs(old.config, lengths=(6, 6), counts=(7, 7))
    torch.testing.assert_close(old(*full).pooled, new(*full).pooled, rtol=0, atol=1e-6)
    ragged = inputs(old.config, lengths=(6, 6), counts=(7, 4))
    assert (old(*ragged).pooled[1] - new(*ragged).pooled[1]).abs().max() > 1e-4


@torch.no_grad()
def test_a_region_of_zeros_reads_the_mask_vector_and_the_input_stays(small_encoder, inputs):
    encoder = small_encoder("vl-bert")
    tensors = inputs(encoder.config)
    tensors[2][0, 1] = 0
    before = tensors[2].clone()
    empty = encoder(*tensors).pooled
    assert torch.equal(tensors[2], before)
    tensors[2][0, 1] = encoder.image_embed.masked.weight[0]
    torch.testing.assert_close(encoder(*tensors).pooled, empty, rtol=0, atol=1e-6)


def test_legacy_needs_room_behind_the_regions(small_encoder, inputs):
    new, old = small_encoder("vl-bert"), small_encoder("vl-bert", legacy=True)
    tensors = inputs(new.config, lengths=(60, 60), counts=(7, 7))
    assert new(*tensors).text.shape == (2, 60, 24)
    with pytest.raises(ValueError, match=r"input_ids has shape \(2, 60\); expected at most 55 tokens.*\(64, 24\)"):
        old(*tensors)
