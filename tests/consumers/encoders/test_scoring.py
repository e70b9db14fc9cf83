"""Scores of all pairs equal the scores of each pair alone."""

import pytest
import torch

from consumers.encoders import Embedded, list_encoders, score_pairs


@pytest.mark.parametrize(
    ("name", "legacy"), [*((name, False) for name in list_encoders()), ("vl-bert", True), ("m3p", True)]
)
@torch.no_grad()
def test_all_pairs(name, legacy, small_encoder, inputs):
    encoder = small_encoder(name, heads=("retrieval",), legacy=legacy)
    ids, input_mask, features, locations, region_mask = inputs(encoder.config, (9, 4, 6), (7, 7, 7))
    halves = [encoder.embed_text(ids[part], input_mask[part]) for part in (slice(2), slice(2, 3))]
    texts, regions = Embedded.concatenated(halves), encoder.embed_regions(features, locations, region_mask)
    done = []
    scores = score_pairs(encoder, texts, regions, images_per_batch=2, progress=done.append)
    assert done == [2, 3, 5, 6, 8, 9]
    for t in range(3):
        for i in range(3):
            pair = ids[t : t + 1], input_mask[t : t + 1], *(x[i : i + 1] for x in (features, locations, region_mask))
            alone = encoder.head("retrieval")(encoder(*pair)).item()
            assert scores[t, i].item() == pytest.approx(alone, abs=2e-5)
