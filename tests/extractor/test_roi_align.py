import pytest
import torch
from torchvision.ops import roi_align

from extractor.roi_align import RoIAlign

GENERATOR = torch.Generator().manual_seed(5)
FEATURE = torch.randn(1, 6, 13, 17, generator=GENERATOR)
CORNERS = torch.rand(40, 2, 2, generator=GENERATOR).sort(dim=1).values * torch.tensor([272.0, 208.0])
EDGES = torch.tensor(
    [[0.0, 0, 272, 208], [-60, -60, 400, 300], [271, 207, 272, 208], [5, 5, 5, 5], [300, 250, 350, 260], [0, 0, 1, 208]]
)
ROIS = torch.cat((CORNERS.flatten(1), EDGES))


@pytest.mark.parametrize("size", [1, 7, 14])
@pytest.mark.parametrize("sampling_ratio", [0, 1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
def test_it_pools_as_torchvision_does(size, sampling_ratio, aligned):
    pool = RoIAlign(FEATURE, ROIS, size, 1 / 16, sampling_ratio, aligned)
    theirs = roi_align(FEATURE, [ROIS], size, 1 / 16, sampling_ratio, aligned)
    ours = pool(slice(None))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
    assert ours.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("step", [2, 3])
def test_bins_may_be_left_out(step):
    whole = RoIAlign(FEATURE, ROIS, 14, 1 / 16, 2, True)(slice(None))
    some = RoIAlign(FEATURE, ROIS, 14, 1 / 16, 2, True, step)(slice(None))
    assert torch.equal(some, whole[:, :, ::step, ::step])


def test_a_roi_does_not_depend_on_the_others():
    pool = RoIAlign(FEATURE, ROIS, 7, 1 / 16, 0, False)
    together = pool(slice(None))
    for i in range(len(ROIS)):
        assert torch.equal(pool(slice(i, i + 1))[0], together[i])
    assert pool(slice(0, 0)).shape == (0, 6, 7, 7)


def test_a_map_of_one_cell_and_of_a_lower_precision():
    feature = torch.full((1, 3, 1, 1), 2.5, dtype=torch.bfloat16)
    rois = torch.tensor([[0.0, 0, 8, 8], [0, 0, 16, 16]])
    pooled = RoIAlign(feature, rois, 3, 1 / 16, 2, False)(slice(None))
    assert pooled.dtype == torch.float32 and torch.equal(pooled, torch.full((2, 3, 3, 3), 2.5))
