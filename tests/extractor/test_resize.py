"""The two resize rules: sizes, exact pixels, and the reference inputs when they are there."""

import numpy as np
import pytest
from PIL import Image

from extractor.images import decode
from extractor.resize import opencv_scale, resize_opencv, resize_pillow, short_side_size

RNG = np.random.default_rng(4)
PHOTO = RNG.integers(0, 256, (48, 64, 3), dtype=np.uint8)
MEAN = np.array([102.9801, 115.9465, 122.7717])
# height, width -> size at 800/1333, of both rules
SIZES = [
    ((480, 640), (800, 1067)),
    ((333, 500), (800, 1201)),
    ((1200, 300), (1333, 333)),
    ((427, 640), (800, 1199)),
    ((800, 800), (800, 800)),
    ((800, 1333), (800, 1333)),
    ((600, 20000), (40, 1333)),
]


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_sizes(before, after):
    assert short_side_size(*before, 800, 1333) == after
    scale = opencv_scale(*before, 800, 1333)
    assert tuple(int(np.round(side * scale)) for side in before) == after


def test_sizes_round_half_up_and_half_to_even():
    assert short_side_size(2, 5, 1, 99) == (1, 3)
    assert resize_opencv(np.zeros((2, 5, 3), np.float32), 0.5).shape == (1, 2, 3)


def test_the_cap_looks_at_the_rounded_long_side_in_opencv_only():
    assert opencv_scale(600, 1000.05, 800, 1333) == 800 / 600  # 1333.4 passes
    assert short_side_size(3000, 5001, 800, 1333) == (800, 1333)
    assert opencv_scale(3000, 5001, 800, 1333) == 1333 / 5001


@pytest.mark.parametrize("shape", [(1, 1), (1, 20000), (20000, 1), (2, 9000)])
def test_no_side_becomes_0(shape):
    image = np.full((*shape, 3), 7, np.uint8)
    size = short_side_size(*shape, 800, 1333)
    assert min(size) >= 1 and max(size) <= 1333
    assert (resize_pillow(image, size) == 7).all() and resize_pillow(image, size).shape == (*size, 3)
    resized = resize_opencv(image.astype(np.float32), opencv_scale(*shape, 800, 1333))
    assert np.abs(resized - 7).max() < 1e-5 and min(resized.shape[:2]) >= 1 and max(resized.shape) <= 1333


def triangle_weights(source: int, target: int) -> np.ndarray:
    """[target, source] weights of Pillow's BILINEAR before rounding: a triangle as wide as the scale, at least 1."""
    scale = max(source / target, 1.0)
    centres = (np.arange(target) + 0.5) * source / target
    weights = np.clip(1 - np.abs(np.arange(source) + 0.5 - centres[:, None]) / scale, 0, None)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(100, 133), (20, 27), (48, 30), (7, 200)])
def test_pillow_filters_and_opencv_interpolates(size):
    rows = np.tensordot(triangle_weights(48, size[0]), PHOTO.astype(float), 1)
    expected = np.einsum("bw,awc->abc", triangle_weights(64, size[1]), rows)
    resized = resize_pillow(PHOTO, size)
    assert resized.dtype == np.uint8 and resized.flags.writeable
    assert np.abs(resized - expected).max() <= 1.01  # it rounds after each of two passes
    assert np.array_equal(resized, Image.fromarray(PHOTO).resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.array_equal(resize_pillow(PHOTO[..., ::-1], size), resized[..., ::-1])


def bilinear(image: np.ndarray, scale: float) -> np.ndarray:
    """Samples at (i + 0.5) / scale - 0.5, edges repeated."""
    for axis in (0, 1):
        size = image.shape[axis]
        at = np.clip((np.arange(int(np.round(size * scale))) + 0.5) / scale - 0.5, 0, size - 1)
        low = np.minimum(at.astype(int), size - 2)
        part = (at - low).reshape([-1 if a == axis else 1 for a in range(3)])
        image = image.take(low, axis) * (1 - part) + image.take(low + 1, axis) * part
    return image


@pytest.mark.parametrize("scale", [1.6666666666666667, 2.0, 1.0, 0.37, 5.7])
def test_opencv_samples_at_exactly_one_over_the_scale(scale):
    image = PHOTO.astype(np.float32) - MEAN.astype(np.float32)
    resized = resize_opencv(image, scale)
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized, bilinear(image.astype(float), scale), atol=2e-3)


def test_the_number_of_opencv_threads_does_not_change_a_bit():
    import cv2

    image = RNG.normal(0, 50, (300, 400, 3)).astype(np.float32)
    expected = resize_opencv(image, 1.7)
    assert cv2.getNumThreads() == 1
    try:
        cv2.setNumThreads(4)
        assert np.array_equal(resize_opencv(image, 1.7), expected)
        assert cv2.getNumThreads() == 4  # set once, not at each call
    finally:
        cv2.setNumThreads(1)


def sample(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)[np.linspace(0, array.size - 1, 64).astype(np.int64)]


def stats(array: np.ndarray) -> list[float]:
    wide = array.astype(np.float64)
    return [wide.mean(), wide.std(), wide.min(), wide.max()]


@pytest.mark.parametrize("name", ["syn_480x640", "syn_1200x300"])
def test_reference_input_of_detectron2(golden, name):
    reference = np.load(golden / "r101c4" / f"{name}.npz")
    image = decode(golden / "images" / f"{name}.png", name)
    bgr = resize_pillow(image.rgb[..., ::-1], short_side_size(image.height, image.width, 800, 1333))
    network = (bgr.astype(np.float32) - MEAN.astype(np.float32)).transpose(2, 0, 1)[None]
    assert network.shape == tuple(reference["input_shape"])
    assert np.array_equal(sample(network), reference["input_sample"])
    np.testing.assert_allclose(stats(network), reference["input_stats"], rtol=1e-6)


@pytest.mark.parametrize("name", ["syn_480x640", "syn_1200x300", "syn_1200x300__upstream_bgr_order"])
def test_reference_input_of_maskrcnn_benchmark(golden, name):
    reference = np.load(golden / "x101fpn" / f"{name}.npz")
    image = decode(golden / "images" / f"{name.partition('__')[0]}.png", name)
    network = (image.rgb[..., ::-1] if name.endswith("bgr_order") else image.rgb).astype(np.float32)
    network -= MEAN  # in float64, rounded once
    scale = opencv_scale(image.height, image.width, 800, 1333)
    assert scale == reference["im_scale"]
    resized = resize_opencv(network, scale).transpose(2, 0, 1)
    padded = np.zeros(reference["input_shape"], np.float32)
    padded[0, :, : resized.shape[1], : resized.shape[2]] = resized
    np.testing.assert_allclose(sample(padded), reference["input_sample"], atol=2e-3)
    np.testing.assert_allclose(stats(padded), reference["input_stats"], atol=2e-3)
    if uses_ipp():
        assert np.array_equal(sample(padded), reference["input_sample"])


def uses_ipp() -> bool:
    """Intel's library, which the OpenCV wheels for x86 resize with, and the references were made with."""
    import cv2

    return cv2.ipp.useIPP()
