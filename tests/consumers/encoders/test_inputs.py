"""Wrong inputs: the error names the tensor, its shape and the shape wanted."""

import pytest
import torch

from cache import DataError
from consumers.encoders import InputError

NAMES = ("input_ids", "input_mask", "features", "locations", "region_mask")


@pytest.fixture(scope="module")
def encoder(small_encoder):
    return small_encoder("uniter")


@pytest.fixture
def tensors(encoder, inputs):
    return dict(zip(NAMES, inputs(encoder.config), strict=True))


def refused(encoder, tensors, name, pattern):
    with pytest.raises(InputError, match=pattern) as caught:
        encoder(*(tensors[n] for n in NAMES))
    assert caught.value.tensor == name
    assert isinstance(caught.value, (DataError, ValueError)) and caught.value.exit_code == 65


def with_value(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


@pytest.mark.parametrize(
    ("name", "change", "pattern"),
    [
        *((name, lambda x: x.numpy(), f"{name} has shape .*it is a ndarray") for name in NAMES),
        ("input_ids", lambda x: x[0], r"input_ids has shape \(9,\); expected \(B, L\)"),
        ("input_ids", lambda x: x[:, :0], r"input_ids has shape \(2, 0\); expected \(B, L\) with B and L at least 1"),
        ("input_ids", lambda x: x.float(), r"input_ids has shape \(2, 9\); .*integers.*float32"),
        ("input_ids", lambda x: with_value(x, (1, 2), 80), r"input_ids has shape \(2, 9\); .*80 .*\(80, 24\)"),
        ("input_ids", lambda x: with_value(x, (1, 2), -1), r"input_ids has shape \(2, 9\); .*-1 .*\(80, 24\)"),
        ("input_mask", lambda x: x[:, :5], r"input_mask has shape \(2, 5\); expected \(2, 9\)"),
        ("input_mask", lambda x: with_value(x, 1, 0), r"input_mask has shape \(2, 9\); .*sample 1 has none"),
        ("input_mask", lambda x: x * 3, r"input_mask has shape \(2, 9\); .*zeros and ones.*3"),
        ("features", lambda x: x[..., :12], r"features has shape \(2, 7, 12\); expected \(2, 7, 16\)"),
        ("features", lambda x: x[0], r"features has shape \(7, 16\); expected \(B, R, 16\)"),
        ("features", lambda x: x[:, :0], r"features has shape \(2, 0, 16\); expected \(2, at least 1, 16\)"),
        ("features", lambda x: with_value(x, (1, 3), torch.nan), r"features has shape \(2, 7, 16\); .*3, 0\) is nan"),
        ("features", lambda x: with_value(x, (0, 0, 0), torch.inf), r"features has shape \(2, 7, 16\); .*is inf"),
        ("locations", lambda x: x[..., :4], r"locations has shape \(2, 7, 4\); expected \(2, 7, 5\)"),
        ("locations", lambda x: x[:, :3], r"locations has shape \(2, 3, 5\); expected \(2, 7, 5\)"),
        ("locations", lambda x: x / 0, r"locations has shape \(2, 7, 5\); .*finite"),
        ("region_mask", lambda x: x[:, :5], r"region_mask has shape \(2, 5\); expected \(2, 7\)"),
        ("region_mask", lambda x: with_value(x, 0, 0), r"region_mask has shape \(2, 7\); .*region.*sample 0 has none"),
    ],
)
def test_wrong_tensors(encoder, tensors, name, change, pattern):
    refused(encoder, tensors | {name: change(tensors[name])}, name, pattern)


def test_batches_of_different_sizes(encoder, tensors):
    fewer = {name: tensors[name][:1] for name in ("features", "locations", "region_mask")}
    refused(encoder, tensors | fewer, "features", r"features has shape \(1, 7\); expected \(2, R, ...\).*\(2, 9\)")


@pytest.mark.parametrize(("name", "longest"), [("uniter", 64), ("xuniter", 62), ("m3p", 60), ("vl-bert", 62)])
def test_texts_longer_than_the_position_table(small_encoder, inputs, name, longest):
    encoder = small_encoder(name)
    fits = inputs(encoder.config, lengths=(5,), counts=(4,), text_slots=longest)
    assert encoder(*fits).text.shape[1] == longest
    ids, input_mask, *image = fits
    ids = torch.cat((ids, ids.new_full((1, 1), encoder.config.pad_id)), 1)
    input_mask = torch.cat((input_mask, input_mask.new_zeros(1, 1)), 1)
    with pytest.raises(InputError, match=rf"input_ids has shape \(1, {longest + 1}\); .*\(64, 24\)"):
        encoder(ids, input_mask, *image)


def test_half_precision_features_and_boolean_masks(encoder, tensors):
    other = tensors | {
        "features": tensors["features"].half(),
        "input_mask": tensors["input_mask"].bool(),
        "region_mask": tensors["region_mask"].float(),
    }
    with torch.no_grad():
        expected = encoder(*(tensors[n] for n in NAMES)).pooled
        torch.testing.assert_close(encoder(*(other[n] for n in NAMES)).pooled, expected, rtol=0, atol=1e-2)
