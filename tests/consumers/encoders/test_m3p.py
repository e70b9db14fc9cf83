"""M3P reads regions first, then words; the published code lost words where regions were missing."""

import pytest
import torch


@torch.no_grad()
def test_legacy_loses_words_where_regions_are_missing(small_encoder, inputs):
    old, new = small_encoder("m3p", legacy=True), small_encoder("m3p")
    tensors = inputs(old.config, lengths=(5,), counts=(3,), region_slots=8)
    other = tensors[0].clone()
    other[0] = torch.where(other[0] == 79, 78, 79)
    assert torch.equal(old(*tensors).pooled, old(other, *tensors[1:]).pooled)  # 3 regions + 5 words fill the 8 slots
    assert (new(*tensors).pooled - new(other, *tensors[1:]).pooled).abs().max() > 1e-3


@torch.no_grad()
def test_both_agree_when_all_slots_are_filled(small_encoder, inputs):
    old, new = small_encoder("m3p", legacy=True), small_encoder("m3p")
    tensors = inputs(old.config, lengths=(9, 6), counts=(7, 7))
    for a, b in zip(old(*tensors), new(*tensors), strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, rtol=0, atol=1e-6)


@torch.no_grad()
def test_padding_comes_out_as_zeros(small_encoder, inputs):
    encoder = small_encoder("m3p")
    output = encoder(*inputs(encoder.config, lengths=(9, 6), counts=(7, 4)))
    assert not output.text[1, 6:].any() and not output.regions[1, 4:].any()
    assert output.text[1, 5].any() and output.regions[1, 3].any()


def test_unused_tensors_are_kept_and_frozen(small_encoder):
    encoder = small_encoder("m3p")
    unused = [p for n, p in encoder.named_parameters() if n.startswith("unused.")]
    assert len(unused) == 267 and not any(p.requires_grad for p in unused)
    assert sum(name.startswith("bert.encoder.refine_embeddings.") for name in encoder.to_volta()) == 98


def test_regions_and_words_share_one_table(small_encoder, inputs):
    encoder = small_encoder("m3p")
    tensors = inputs(encoder.config, lengths=(30,), counts=(40,))
    with pytest.raises(ValueError, match=r"input_ids has shape \(1, 30\); expected at most 24 tokens.*\(64, 24\)"):
        encoder(*tensors)
