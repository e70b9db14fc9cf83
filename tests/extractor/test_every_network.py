"""What every preset promises, with its network shrunken by the names of its fields. A new one is in it by itself."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from cache import Regions, StoreMismatch, StoreWriter, WeightsError, open_store
from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.networks import empty_network
from extractor.presets import get_preset, list_extractors
from extractor.weights import matching_tensors
from tests.extractor.shrunken import save_weights, shrunken

# those that differ in more than their names once they are small
PRESETS = list({replace(shrunken(get_preset(name)), name="", summary="", training_data="", weights="", urls=()): name
                for name in reversed(list_extractors())}.values())  # fmt: skip
BOXES = np.array([[10, 10, 90, 80], [0, 0, 160, 120], [5, 60, 37, 119.5]], np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(name, precision) -> the extractor; and .weights: name -> its checkpoint."""
    folder = tmp_path_factory.mktemp("weights")

    @cache
    def weights(name):
        architecture = get_preset(name).architecture
        if package := getattr(architecture, "package", ""):
            pytest.importorskip(package)
        return save_weights(shrunken(get_preset(name)), folder)

    @cache
    def load(name, precision="float32"):
        return Extractor(shrunken(get_preset(name)), weights(name), "cpu", precision, DecodePolicy())

    load.weights = weights
    return load


def same(a: Regions, b: Regions) -> bool:
    mine, theirs = a.arrays(), b.arrays()
    equal = mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
    return equal and (a.width, a.height) == (b.width, b.height)


@pytest.mark.parametrize("name", PRESETS)
def test_a_record_does_not_depend_on_its_company(made, pictures, name):
    extractor, preset = made(name), get_preset(name)
    given = [None, None, BOXES]
    alone = [extractor([p], boxes=[b])[0] for p, b in zip(pictures[:3], given, strict=True)]
    for order in itertools.permutations(range(3)):
        together = extractor([pictures[i] for i in order], boxes=[given[i] for i in order])
        assert all(same(together[place], alone[i]) for place, i in enumerate(order)), order
    first = extractor([pictures[2]], boxes=[BOXES[:1]])[0]
    assert np.array_equal(first.features, alone[2].features[:1])
    assert np.array_equal(alone[2].boxes, BOXES)
    for picture, regions in zip(pictures[:2], alone[:2], strict=True):
        assert regions.features.shape == (len(regions), extractor.dim) and regions.features.dtype == np.float32
        assert 1 <= len(regions) <= preset.selection.max_regions
        assert (regions.height, regions.width) == picture.shape[:2]
        assert (regions.boxes[:, 2:] >= regions.boxes[:, :2]).all()
        for ids, names in ((regions.class_ids, preset.classes), (regions.attr_ids, preset.attributes)):
            assert (ids is None) == (not names)
            assert ids is None or (len(ids) == len(regions) and ids.min() >= 0 and ids.max() < len(names))


@pytest.mark.parametrize("name", PRESETS)
def test_images_of_one_input_size_share_a_pass(made, name, monkeypatch):
    """As on a GPU: what depends on an image's own size is taken from that image."""
    block = np.random.default_rng(5).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    small, large = (np.kron(block, np.ones((k, k, 1), np.uint8)) for k in (6, 15))
    alone = [made(name)([picture])[0] for picture in (small, large)]
    passes, network = [], made(name)._network
    detect = network.detect

    def counted(images, *arguments, **more):
        passes.append(len(images))
        return detect(images, *arguments, **more)

    monkeypatch.setattr(network, "detect", counted)
    monkeypatch.setattr(Extractor, "_batch", 2)
    for one, other in zip(made(name)([small, large]), alone, strict=True):
        assert len(one) == len(other) and (one.width, one.height) == (other.width, other.height)
        np.testing.assert_allclose(one.boxes, other.boxes, atol=0.05)
        np.testing.assert_allclose(one.features, other.features, rtol=1e-3, atol=1e-3)
    assert passes == [2]


@pytest.mark.parametrize("name", PRESETS)
def test_odd_images_are_described(made, name):
    grey = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80), dtype=np.uint8))
    for image in (
        np.full((1, 1, 3), 128, np.uint8),
        np.full((2, 700, 3), 128, np.uint8),
        np.full((700, 2, 3), 128, np.uint8),
        encoded(grey),
        encoded(grey.convert("RGB").quantize(16)),
        encoded(grey.convert("LA")),
    ):
        (regions,) = made(name)([image])
        assert isinstance(regions, Regions) and np.isfinite(regions.features).all()
        width, height = regions.width, regions.height
        (regions,) = made(name)([image], boxes=[np.array([[0, 0, width, height]])])
        assert len(regions) == 1 and np.isfinite(regions.features).all()


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PRESETS)
def test_lower_precisions_stay_near(made, pictures, name, precision):
    reference = made(name)(pictures[:1], boxes=[BOXES])[0].features
    low = made(name, precision)
    features = low(pictures[:1], boxes=[BOXES])[0].features
    assert not np.array_equal(features, reference) or not low._network.reduced
    cosine = (features * reference).sum(1) / np.linalg.norm(reference, axis=1) / np.linalg.norm(features, axis=1)
    assert (cosine > 0.995).all()
    alone, together = low(pictures[:1])[0], low(pictures[1::-1])[1]
    assert same(alone, together)


@pytest.mark.parametrize("name", PRESETS)
def test_loading_is_strict(made, name, tmp_path, monkeypatch):
    monkeypatch.setattr("extractor.fitting.PRESETS", {})  # which are of full size
    path, preset = made.weights(name), shrunken(get_preset(name))
    state = load_file(path)
    network = empty_network(preset.architecture)
    assert matching_tensors(network, path).keys() == network.state_dict().keys()
    some = sorted(state)[len(state) // 2]
    for content, words in (
        ({n: t for n, t in state.items() if n != some}, f"missing {some}"),
        (state | {"extra.weight": state[some].clone()}, "unknown extra.weight"),
        (state | {some: torch.zeros(3, 5, 2)}, rf"{some} has shape \[3, 5, 2\]"),
        (state | {some: torch.full_like(state[some], float("nan"))}, f"{some} holds NaN"),
    ):
        save_file(content, str(tmp_path / "bad.safetensors"))
        with pytest.raises(WeightsError, match=words):
            matching_tensors(network, tmp_path / "bad.safetensors")


@pytest.mark.parametrize("name", PRESETS)
def test_a_store_is_continued_by_its_preset_alone(made, pictures, name, tmp_path):
    extractor, other = made(name), shrunken(get_preset(PRESETS[PRESETS.index(name) - 1]))
    records = extractor(pictures[:2], keys=["a", "b"])
    for record in records:  # each by a writer of its own
        with StoreWriter(tmp_path / "s.roi", "float32", extractor.fingerprint(), extractor.vocabularies()) as writer:
            writer.write([record])
    foreign = extractor.fingerprint() | other.choices()
    with pytest.raises(StoreMismatch, match="preset"):
        StoreWriter(tmp_path / "s.roi", "float32", foreign)
    stored = open_store(tmp_path / "s.roi").get_many(["a", "b"])
    assert all(same(one, two) for one, two in zip(stored, records, strict=True))
