import numpy as np
import pytest
import torch

from extractor.configs import Preprocess
from extractor.images import decode
from extractor.preprocess import frame, network_input
from extractor.presets import get_preset

CASES = [
    ("vg-r101", "r101c4", "syn_1200x300"),
    ("vg-r101", "r101c4", "syn_480x640"),
    ("vg-x101-iglue", "x101fpn", "syn_1200x300"),
    ("vg-x101-iglue", "x101fpn", "syn_480x640"),
    ("vg-x101", "x101fpn", "syn_1200x300__upstream_bgr_order"),
]


@pytest.mark.parametrize(("model", "folder", "name"), CASES)
def test_inputs_equal_the_reference_implementation(golden, model, folder, name):
    stored, rule = np.load(golden / folder / f"{name}.npz"), get_preset(model).preprocess
    rgb = decode(golden / "images" / f"{name.split('__')[0]}.png", "k").rgb
    inputs = network_input(rule, rgb, frame(rule, *rgb.shape[:2]))
    _, channels, height, width = stored["input_shape"]
    padded = torch.nn.functional.pad(inputs, (0, width - inputs.shape[2], 0, height - inputs.shape[1]))
    assert padded.shape == (channels, height, width)
    flat = padded.flatten()
    places = np.linspace(0, len(flat) - 1, 64).astype(np.int64)
    np.testing.assert_allclose(flat[places].numpy(), stored["input_sample"], atol=1e-4)
    np.testing.assert_allclose(flat.double().mean(), stored["input_stats"][0], atol=1e-3)


@pytest.mark.parametrize("resize", ["pillow", "opencv", "torch"])
@pytest.mark.parametrize("size", [(1, 1), (1, 900), (30, 40), (333, 500)])
def test_the_frame_tells_the_size_of_the_input(resize, size):
    rule = Preprocess(short_side=60, long_side=100, resize=resize)
    to = frame(rule, *size)
    assert network_input(rule, np.zeros((*size, 3), np.uint8), to).shape == (3, *to.size)
    np.testing.assert_allclose(to.to_original * to.to_resized, 1, rtol=1e-6)


def test_channels_mean_and_deviation():
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 200
    for channels, place in (("bgr", 2), ("rgb", 0)):
        rule = Preprocess(4, 4, (1.0, 2.0, 3.0), (10.0, 20.0, 40.0), channels=channels)
        expected = [-0.1, -0.1, -0.075]
        expected[place] = (200 - (1, 2, 3)[place]) / (10, 20, 40)[place]
        assert network_input(rule, red, frame(rule, 4, 4))[:, 1, 1].tolist() == pytest.approx(expected)
