import numpy as np
import pytest
import torch

from extractor.configs import C4Config
from extractor.detector import Detector
from extractor.extractor import Extractor
from extractor.images import DecodePolicy
from extractor.presets import get_preset
from extractor.roi_heads import RoIHeads
from tests.extractor.shrunken import save_weights, shrunken


def test_roi_pooling_equals_the_reference_implementation(golden):
    stored = np.load(golden / "r101c4" / "ops_roipool.npz")
    boxes = torch.from_numpy(stored["boxes"])
    rois = torch.cat((boxes.new_zeros(len(boxes), 1), boxes), dim=1)
    with torch.device("meta"):
        heads = RoIHeads(C4Config())
    pooled = heads.pool(torch.from_numpy(stored["feature"]), rois)
    np.testing.assert_array_equal(pooled.numpy(), stored["pooled"])


def test_tensor_names_and_shapes_are_those_of_the_published_checkpoint(golden):
    lines = (golden / "r101c4_state_dict.txt").read_text().splitlines()
    published = dict(line.split(maxsplit=1) for line in lines if "cell_anchors" not in line)
    with torch.device("meta"):
        ours = {name: str(tuple(tensor.shape)) for name, tensor in Detector(C4Config()).state_dict().items()}
    assert ours == published


def test_the_number_of_rois_does_not_change_a_rois_description(small_extractor):
    detector = small_extractor._network
    feature = detector.backbone(torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(0)))
    boxes = torch.tensor([[4.0 * i, 2.0 * i, 4.0 * i + 30, 2.0 * i + 25] for i in range(20)])
    with torch.inference_mode():
        together = detector.describe(feature, boxes, (96, 128))
        for i in (0, 7, 15, 16, 19):
            alone = detector.describe(feature, boxes[i : i + 1], (96, 128))
            assert torch.equal(alone.features[0], together.features[i])
            assert torch.equal(alone.boxes[0], together.boxes[i])


def test_no_rois_at_all(small_extractor):
    detector = small_extractor._network
    with torch.inference_mode():
        found = detector.describe(torch.zeros(1, 16, 2, 2), torch.zeros(0, 4), (32, 32))
    assert len(found) == 0 and found.features.shape == (0, small_extractor.dim)


@pytest.mark.parametrize("name", ["vg-r101", "bua-r101-10-100", "vinvl-x152"])
@pytest.mark.parametrize("size", [(1, 3000), (3000, 2)])
def test_no_box_reaches_into_what_fills_up_a_sliver(name, size, tmp_path):
    preset = shrunken(get_preset(name))
    extractor = Extractor(preset, save_weights(preset, tmp_path), "cpu", "float32", DecodePolicy())
    (regions,) = extractor([np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)])
    assert (regions.height, regions.width) == size
    assert (regions.boxes >= 0).all() and (regions.boxes[:, 2:].max(axis=0, initial=0) <= size[::-1]).all()
