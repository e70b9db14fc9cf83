from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import extractor.presets as presets
from extractor.configs import Architecture, MaxClassNMS
from extractor.extractor import load_extractor
from extractor.networks import empty_network, load_network

NETWORK = '''
import torch
from torch import nn
from extractor.detections import Detections

class Quarters(nn.Module):
    """Describes the four quarters of an image by their mean colour."""

    reduced = ()

    def __init__(self, architecture):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    @torch.inference_mode()
    def detect(self, images, rois=None, chunk=None):
        height, width = images.shape[2:]
        x, y = width / 2, height / 2
        quarters = torch.tensor([[0, 0, x, y], [x, 0, width, y], [0, y, x, height], [x, y, width, height]])
        for i, image in enumerate(images):
            boxes = quarters if rois is None else rois[i]
            features = torch.stack([
                image[:, int(b[1]):max(int(b[3]), int(b[1]) + 1), int(b[0]):max(int(b[2]), int(b[0]) + 1)].mean((1, 2))
                for b in boxes
            ]) * self.scale
            scores = torch.arange(len(boxes), 0, -1.0)[:, None] / 10
            yield Detections(boxes, boxes, features, scores.argmax(1), scores[:, 0], scores)
'''


@pytest.fixture
def quarters(tmp_path, monkeypatch):
    """A detector of one file, registered by one line."""
    (tmp_path / "quarters_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    save_file({"scale": torch.tensor([1.0, 2.0, 3.0])}, str(tmp_path / "weights.safetensors"))
    preset = replace(
        presets.DEMO,
        name="quarters",
        architecture=Architecture("quarters_network:Quarters", dim=3, num_classes=1),
        selection=MaxClassNMS(max_regions=3),
        weights=str(tmp_path / "weights.safetensors"),
        attribute_file="",
    )
    monkeypatch.setitem(presets.PRESETS, "quarters", preset)
    return preset


def test_a_network_of_one_file_runs_by_its_name(quarters, pictures):
    extractor = load_extractor("quarters", device="cpu")
    found, given = extractor(pictures[:2], boxes=[None, np.array([[0, 0, 30, 30]])])
    assert found.features.shape == (3, 3) and given.features.shape == (1, 3) and found.attr_ids is None
    assert found.boxes[0].tolist() == pytest.approx([0, 0, 80, 60], abs=0.5)
    top_left = pictures[0][:60, :80].mean((0, 1))[::-1] - quarters.preprocess.mean
    np.testing.assert_allclose(found.features[0], top_left * [1, 2, 3], atol=3)


def test_an_empty_network_has_names_and_shapes_only(small_preset):
    network = empty_network(small_preset.architecture)
    assert all(tensor.is_meta for tensor in network.state_dict().values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_loading_folds_norms_and_lowers_just_what_may_be(small_preset, small_weights, precision):
    network = load_network(small_preset.architecture, small_weights, torch.device("cpu"), precision)
    names = [name for name, _ in network.named_parameters()]
    assert not any("norm" in name for name in names) and not list(network.buffers())
    for name, parameter in network.named_parameters():
        low = precision == "bfloat16" and name.startswith(network.reduced)
        assert parameter.dtype == (torch.bfloat16 if low else torch.float32), name
        assert not parameter.requires_grad


@pytest.mark.parametrize("pooled_size", [7, 14])
def test_folding_does_not_change_the_function(small_preset, small_weights, pooled_size):
    from extractor.networks import network_class
    from extractor.weights import load_weights

    architecture = replace(small_preset.architecture, pooled_size=pooled_size)
    plain = network_class(architecture)(architecture).eval()
    load_weights(plain, small_weights)
    folded = load_network(architecture, small_weights, torch.device("cpu"), "float32")
    images = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)) * 50
    boxes = [torch.tensor([[4.0, 4.0, 60.0, 50.0]])]
    one, two = next(plain.detect(images, boxes)), next(folded.detect(images, boxes))
    torch.testing.assert_close(one.features, two.features, rtol=1e-4, atol=1e-4)
