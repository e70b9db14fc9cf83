import numpy as np
import torch

from extractor.detector import Detector
from extractor.presets import C4Config, MaxClassNMS, Preprocess
from extractor.roi_heads import RoIHeads
from extractor.selection import select_max_class


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
    published = {name: shape for name, shape in (line.split(maxsplit=1) for line in lines) if "cell_anchors" not in name}
    with torch.device("meta"):
        ours = {name: str(tuple(tensor.shape)) for name, tensor in Detector(C4Config()).state_dict().items()}
    assert ours == published


def test_a_full_size_run_equals_the_reference_implementation(golden, golden_weight):
    from PIL import Image

    from extractor.resize import resize_pillow, short_side_size

    detector = Detector(C4Config()).eval()
    detector.load_state_dict(
        {name: torch.from_numpy(golden_weight(name, tuple(t.shape))) for name, t in detector.state_dict().items()}
    )
    stored = np.load(golden / "r101c4" / "syn_1200x300.npz")
    rgb = np.asarray(Image.open(golden / "images" / "syn_1200x300.png").convert("RGB"))
    rule = Preprocess()
    size = short_side_size(*rgb.shape[:2], rule.short_side, rule.long_side)
    pixels = resize_pillow(rgb, size)[:, :, ::-1].astype(np.float32) - np.array(rule.mean_bgr, np.float32)
    found = next(detector.detect(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]))
    np.testing.assert_allclose(found.rois.numpy(), stored["proposals"], atol=0.02)
    found = found[select_max_class(found.boxes, found.class_probs, MaxClassNMS())]
    scale = np.array([rgb.shape[1] / size[1], rgb.shape[0] / size[0]] * 2)
    np.testing.assert_allclose(found.boxes.numpy() * scale, stored["boxes"], atol=0.02)
    np.testing.assert_allclose(found.features.numpy(), stored["features"], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.class_ids.numpy(), stored["obj_id"])
    np.testing.assert_array_equal(found.attr_ids.numpy(), stored["attr_id"])


def test_the_number_of_rois_does_not_change_a_rois_description(small_extractor):
    detector = small_extractor._detector
    feature = detector.backbone(torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(0)))
    boxes = torch.tensor([[4.0 * i, 2.0 * i, 4.0 * i + 30, 2.0 * i + 25] for i in range(20)])
    with torch.inference_mode():
        together = detector.describe(feature, boxes, (96, 128))
        for i in (0, 7, 15, 16, 19):
            alone = detector.describe(feature, boxes[i : i + 1], (96, 128))
            assert torch.equal(alone.features[0], together.features[i])
            assert torch.equal(alone.boxes[0], together.boxes[i])


def test_no_rois_at_all(small_extractor):
    detector = small_extractor._detector
    with torch.inference_mode():
        found = detector.describe(torch.zeros(1, 16, 2, 2), torch.zeros(0, 4), (32, 32))
    assert len(found) == 0 and found.features.shape == (0, small_extractor.dim)
