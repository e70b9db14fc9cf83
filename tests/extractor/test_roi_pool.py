import numpy as np
import pytest
import torch
from torchvision.ops import roi_pool

from extractor.roi_pool import RoIPool


def pool(feature, rois, size, scale=1 / 16):
    return RoIPool(feature, rois, size, scale)(slice(None))


@pytest.mark.parametrize("size", [7, 14])
@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (21, 84), (50, 67)])
def test_the_bits_of_torchvision(size, shape):
    generator = torch.Generator().manual_seed(size)
    feature = torch.randn(1, 3, *shape, generator=generator).contiguous(memory_format=torch.channels_last)
    reach = torch.tensor([shape[1], shape[0]]) * 16.0
    corners = torch.rand(300, 2, 2, generator=generator) * reach * 1.6 - reach * 0.3  # some reach outside, or lie there
    low, high = corners.min(dim=1).values, corners.max(dim=1).values
    exact = torch.arange(100).reshape(50, 2) * 8.0  # corners that lie half-way between cells
    rois = torch.cat((torch.cat((low, high), dim=1), torch.cat((exact, exact + 40), dim=1), torch.zeros(1, 4)))
    expected = roi_pool(feature, torch.cat((torch.zeros(len(rois), 1), rois), dim=1), size, 1 / 16)
    found = pool(feature, rois, size)
    assert torch.equal(found, expected) and found.is_contiguous(memory_format=torch.channels_last)


def test_phases_are_every_other_bin():
    feature = torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    rois = torch.tensor([[0.0, 0, 50, 60], [10, 20, 140, 90]])
    whole, dealt = pool(feature, rois, 14), RoIPool(feature, rois, 14, 1 / 16, phases=2)(slice(None))
    for roi in range(2):
        for row in range(2):
            for column in range(2):
                assert torch.equal(dealt[4 * roi + 2 * row + column], whole[roi, :, row::2, column::2])


def test_some_of_the_rois():
    feature = torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    rois = torch.tensor([[0.0, 0, 50, 60], [10, 20, 140, 90], [100, 0, 120, 30]])
    assert torch.equal(RoIPool(feature, rois, 7, 1 / 16)(slice(1, 2)), pool(feature, rois, 7)[1:2])
    assert pool(feature, rois[:0], 7).shape == (0, 2, 7, 7)


def test_equal_to_the_reference_implementation(golden):
    stored = np.load(golden / "r101c4" / "ops_roipool.npz")
    found = pool(torch.from_numpy(stored["feature"]), torch.from_numpy(stored["boxes"]), 14)
    np.testing.assert_array_equal(found.numpy(), stored["pooled"])
