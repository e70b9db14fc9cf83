from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from extractor.configs import C5GridConfig, FPNConfig, GridCells
from extractor.extractor import Extractor
from extractor.grid_detector import C4Grid, FPNGrid, edges
from extractor.images import DecodePolicy
from extractor.networks import load_network, network_class
from extractor.presets import get_preset
from extractor.weights import load_weights

SIZES = [(112, 112), (64, 96), (65, 97), (47, 131), (20, 20), (3, 80), (1, 1)]


def grid_of(preset, pool=1):
    return replace(
        preset, architecture=C5GridConfig(preset.architecture, pool), selection=GridCells(1, 608), class_file="",
        attribute_file="",
    )  # fmt: skip


def image_of(size, seed=0):
    return torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(seed)) * 50


@pytest.fixture(scope="module")
def fpn_preset():
    small = FPNConfig(
        stem_channels=4, widths=(8, 8, 8, 8), channels=(8, 16, 16, 24), blocks=(1, 1, 1, 1), groups=4,
        pyramid_channels=8, hidden=16, num_classes=1600,
    )  # fmt: skip
    return replace(get_preset("vg-x101"), architecture=small)


@pytest.fixture(scope="module")
def fpn_weights(fpn_preset, tmp_path_factory):
    generator = torch.Generator().manual_seed(5)
    with torch.device("meta"):
        expected = network_class(fpn_preset.architecture)(fpn_preset.architecture).state_dict()
    state = {name: 0.2 * torch.randn(tensor.shape, generator=generator).abs() for name, tensor in expected.items()}
    path = tmp_path_factory.mktemp("weights") / "fpn.safetensors"
    save_file(state, str(path))
    return path


@pytest.mark.parametrize("pooled_size", [7, 14])
@pytest.mark.parametrize("size", SIZES)
def test_merging_norms_and_dilation_does_not_change_the_map(small_preset, small_weights, size, pooled_size):
    """With 14 the dilated convolutions become plain ones on every other cell; here they are as they were trained."""
    architecture = C5GridConfig(replace(small_preset.architecture, pooled_size=pooled_size))
    plain = C4Grid(architecture).eval()
    load_weights(plain, small_weights)
    fast = load_network(architecture, small_weights, torch.device("cpu"), "float32")
    with torch.inference_mode():
        expected, found = plain.c5(image_of(size)), fast.c5(image_of(size))
    assert plain.roi_heads.res5[0].conv2.dilation == (2, 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))


@pytest.mark.parametrize("pooled_size", [7, 14])
def test_the_cells_of_an_image_mean_what_its_one_region_is(small_preset, small_weights, pooled_size):
    """A region that covers a map of just the pooled size is pooled as it is: its feature is the mean of the grid."""
    detector = replace(small_preset.architecture, pooled_size=pooled_size)
    device, side = torch.device("cpu"), 16 * pooled_size
    images, box = image_of((side, side)), [torch.tensor([[0.0, 0.0, side - 16, side - 16]])]  # inclusive cells
    (region,) = load_network(detector, small_weights, device, "float32").detect(images, box)
    for pool in (1, 2 - pooled_size % 2):
        (grid,) = load_network(C5GridConfig(detector, pool), small_weights, device, "float32").detect(images)
        torch.testing.assert_close(grid.features.mean(0, keepdim=True), region.features, rtol=1e-4, atol=1e-4)


def test_the_grid_of_a_pyramid_is_its_last_map_not_its_levels(fpn_preset, fpn_weights):
    network = load_network(C5GridConfig(fpn_preset.architecture), fpn_weights, torch.device("cpu"), "float32")
    images = image_of((70, 100))
    with torch.inference_mode():
        padded = torch.nn.functional.pad(images, (0, 28, 0, 26))
        expected = network.backbone.bottom_up(padded)[-1]
    (found,) = network.detect(images)
    assert torch.equal(found.features, expected[0].permute(1, 2, 0).reshape(-1, 24)) and found.features.shape == (
        12,
        24,
    )
    assert found.boxes[3].tolist() == [96, 0, 100, 32] and found.boxes[-1].tolist() == [96, 64, 100, 70]
    assert found.class_ids is None and found.embedding is None


def test_pooled_cells_are_means_with_the_boxes_of_their_parts(small_preset, small_weights):
    single, pooled = (
        next(load_network(C5GridConfig(small_preset.architecture, pool), small_weights, torch.device("cpu"), "float32")
             .detect(image_of((80, 112))))
        for pool in (1, 2)
    )  # fmt: skip
    assert len(single) == 5 * 7 and len(pooled) == 3 * 4
    cells = single.features.reshape(5, 7, -1)
    torch.testing.assert_close(pooled.features[0], cells[:2, :2].reshape(4, -1).mean(0))
    torch.testing.assert_close(pooled.features[-1], cells[4, 6])  # what is left over at the border
    assert pooled.boxes[0].tolist() == [0, 0, 32, 32] and pooled.boxes[-1].tolist() == [96, 64, 112, 80]


@pytest.mark.parametrize("size", [*SIZES, (16, 16), (17, 33), (18, 34), (35, 36), (600, 1000)])
def test_cells_fill_the_image_for_every_size(small_preset, size):
    """Whatever the rounding of the network's strides, every cell has an area and the last ones end with the image."""
    with torch.device("meta"):
        networks = [C4Grid(C5GridConfig(small_preset.architecture)), FPNGrid(C5GridConfig(FPNConfig(blocks=(1,) * 4)))]
        maps = [network.eval().c5(torch.empty(1, 3, *size)) for network in networks]
    for network, c5 in zip(networks, maps, strict=True):
        for cells, side in zip(c5.shape[2:], size, strict=True):
            for pool in (1, 2):
                borders = edges(-(-cells // pool), side, network.stride * pool)
                assert borders[0] == 0 and borders[-1] == side and (np.diff(borders) > 0).all()
    if size == (600, 1000):
        cells = [c5.shape[2:] for c5 in maps]
        assert cells == [(38, 63), (19, 32)]  # 19 x 32 = 608 of 32 pixels, those of the first in twos


def test_records_of_grids_are_complete(small_preset, small_weights, fpn_preset, fpn_weights, pictures):
    for preset, weights in ((small_preset, small_weights), (fpn_preset, fpn_weights)):
        extractor = Extractor(grid_of(preset, pool=2), weights, "cpu", "float32", DecodePolicy())
        alone = [extractor([picture])[0] for picture in pictures]
        for regions, picture in zip(alone, pictures, strict=True):
            assert (regions.height, regions.width) == picture.shape[:2] and regions.features.shape[1] == extractor.dim
            areas = (regions.boxes[:, 2:] - regions.boxes[:, :2]).prod(1)
            assert areas.sum() == pytest.approx(regions.width * regions.height, rel=1e-4) and (areas > 0).all()
            assert regions.scores is None and regions.class_ids is None and regions.global_features is None
        together = extractor(pictures[::-1])[::-1]
        assert all(np.array_equal(a.features, b.features) for a, b in zip(alone, together, strict=True))
        boxes = np.array([alone[0].boxes[1], [0, 0, 160, 120]], np.float32)
        given = extractor(pictures[:1], boxes=[boxes])[0]
        np.testing.assert_allclose(given.features[0], alone[0].features[1], rtol=1e-4, atol=1e-5)


def test_the_grids_take_the_checkpoints_of_their_detectors():
    for name in ("vg-r101", "vg-x101"):
        detector, grid = get_preset(name), get_preset(f"{name}-grid")
        assert (grid.weights, grid.urls) == (detector.weights, detector.urls)
        assert grid.architecture.detector == detector.architecture and grid.dim == 2048
        with torch.device("meta"):
            tensors = [
                {n: t.shape for n, t in network_class(a)(a).state_dict().items()}
                for a in (detector.architecture, grid.architecture)
            ]
        assert tensors[0] == tensors[1]
