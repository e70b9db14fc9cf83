import pytest

from cache import WeightsError
from extractor.tensor_names import canonical_names


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        ("backbone.body.stem.bn1.running_var", "backbone.bottom_up.stem.conv1.norm.running_var"),
        ("backbone.body.layer1.0.downsample.0.weight", "backbone.bottom_up.res2.0.shortcut.weight"),
        ("backbone.body.layer4.2.bn3.bias", "backbone.bottom_up.res5.2.conv3.norm.bias"),
        ("backbone.fpn.fpn_inner4.bias", "backbone.fpn_lateral5.bias"),
        ("backbone.fpn.fpn_layer1.weight", "backbone.fpn_output2.weight"),
        ("rpn.head.conv.weight", "proposal_generator.rpn_head.conv.weight"),
        ("rpn.head.bbox_pred.bias", "proposal_generator.rpn_head.anchor_deltas.bias"),
        ("roi_heads.box.feature_extractor.fc6.weight", "roi_heads.box_head.fc1.weight"),
        ("roi_heads.box.predictor.cls_score.bias", "roi_heads.box_predictor.cls_score.bias"),
        ("backbone.res4.22.conv3.norm.weight", "backbone.res4.22.conv3.norm.weight"),
    ],
)
def test_names_are_translated(published, ours):
    assert canonical_names([published]) == {published: ours}


def test_names_of_computed_buffers_are_dropped():
    names = [
        "rpn.anchor_generator.cell_anchors.3",
        "proposal_generator.anchor_generator.cell_anchors.0",
        "backbone.stem.conv1.norm.num_batches_tracked",
        "pixel_mean",
    ]
    assert canonical_names(names) == {}


def test_a_prefix_goes_only_when_every_name_has_it():
    assert canonical_names(["module.module.a.weight", "module.module.b"]) == {
        "module.module.a.weight": "a.weight",
        "module.module.b": "b",
    }
    assert canonical_names(["module.a", "b"]) == {"module.a": "module.a", "b": "b"}


def test_two_names_of_one_tensor_are_refused():
    with pytest.raises(WeightsError, match="objectness_logits.bias under two names"):
        canonical_names(["rpn.head.cls_logits.bias", "proposal_generator.rpn_head.objectness_logits.bias"])
