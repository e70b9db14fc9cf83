"""Volta's configurations and names, and the sizes of the published models."""

import json

import pytest
import torch

from cache import InputNotFound, UsageError, WeightsError
from consumers.encoders import encoder_config, from_volta, list_encoders, load_encoder

HEADS = ("xvnli", "gqa", "nlvr2", "retrieval")
TOTALS = {  # parameters with the four heads, and with that of XVNLI alone
    "muniter": (187986744, 180423683),
    "xuniter": (288177720, 280614659),
    "uc2": (282823992, 279631107),
    "m3p": (379273789, 372890632),
    "lxmert": (216487992, 208924931),
    "uniter": (119615544, 112052483),
    "vilbert": (247194168, 239631107),
    "visualbert": (120001080, 112438019),
    "vl-bert": (121186616, 113623555),
    "vilbert-original": (243271992, 235708931),
    "lxmert-original": (214322232, 207939075),
}
GOLDEN_NAMES = {"vilbert-original": "extra_vilbert_orig", "lxmert-original": "extra_lxmert_orig"}


def full_size(name, heads):
    with torch.device("meta"):
        return load_encoder(name, heads=heads)


def test_totals_cover_the_published_encoders():
    assert set(TOTALS) <= set(list_encoders())


@pytest.mark.parametrize("name", TOTALS)
def test_parameter_totals(name):
    encoder = full_size(name, HEADS)
    others = sum(p.numel() for key in HEADS[1:] for p in encoder.heads[key].parameters())
    total = sum(p.numel() for p in encoder.parameters())
    assert (total, total - others) == TOTALS[name]


@pytest.mark.parametrize("name", TOTALS)
def test_names_shapes_and_ties_of_the_full_size_models(golden, name):
    published = json.loads((golden / "full_size_params.json").read_text("utf-8"))[GOLDEN_NAMES.get(name, name)]["tasks"]
    encoder = full_size(name, HEADS)
    assert {names[0]: list(p.shape) for names, p in encoder.volta_parameters()} == published["params"]
    assert {alias: names[0] for names, _ in encoder.volta_parameters() for alias in names[1:]} == published["aliases"]


@pytest.fixture
def uniter(reference, golden_weights):
    """Configuration and state dict of a small mUNITER."""
    entry = reference[0]["muniter"]
    return entry["config"], golden_weights(entry["params"])


def test_sizes_come_from_the_state_dict(uniter):
    config, state = uniter
    published = config | {"vocab_size": 119547, "hidden_size": 768, "intermediate_size": 3072, "pooler_size": 1024}
    encoder = from_volta(published, state, HEADS)
    read = encoder.config
    assert (read.vocab_size, read.text.hidden, read.feature_dim, read.pool_size) == (200, 48, 64, 64)
    assert (read.max_positions, read.location_dim, read.classifier_size) == (64, 5, 72)
    assert encoder.heads["gqa"].logits.out_features == 31
    assert len(read.layout) == 24 and read.joint and read.global_region == "first"


def test_a_path_does_as_well(uniter, tmp_path):
    config, state = uniter
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert from_volta(tmp_path / "config.json", state).config.vocab_size == 200


def test_the_state_dict_is_copied(uniter):
    config, state = uniter
    encoder = from_volta(config, state)
    with torch.no_grad():
        encoder.text_embed.word.weight.zero_()
    assert state["bert.embeddings.word_embeddings.weight"].any()


def test_pretrained_without_heads(uniter):
    config, state = uniter
    bare = {name: t for name, t in state.items() if not name.startswith("clfs_dict")}
    encoder = from_volta(config, bare, ("gqa", "retrieval"))
    assert encoder.heads["gqa"].logits.out_features == 1842
    assert len(encoder.report.fresh) == 8
    assert from_volta(config, bare, {"gqa": 7}).heads["gqa"].logits.out_features == 7


def test_errors_name_the_tensor(uniter):
    config, state = uniter
    with pytest.raises(WeightsError, match="no bert.embeddings.word_embeddings.weight"):
        from_volta(config, {})
    key = "bert.encoder.layer.2.attention_self.key.weight"
    with pytest.raises(WeightsError, match=rf"{key} is \(40, 48\) in the checkpoint and \(48, 48\) in the encoder"):
        from_volta(config, state | {key: torch.zeros(40, 48)})
    with pytest.raises(WeightsError, match=f"missing tensors: 1: {key}"):
        from_volta(config, {name: t for name, t in state.items() if name != key})


def test_an_xlm_r_encoder_for_muniter(uniter, reference, golden_weights):
    state = golden_weights(reference[0]["xuniter"]["params"])
    with pytest.raises(WeightsError, match=r"token_type_embeddings.weight is \(1, 48\).*\(2, 48\)"):
        from_volta(uniter[0], state)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"image_embeddings": "flava"}, "image_embeddings is 'flava'; known are uniter"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
        ({"fusion_method": "vl-bert_vqa"}, "fusion is 'vl-bert_vqa'; choose one of mul, sum, text"),
        ({"num_attention_heads": 5, "v_num_attention_heads": 5}, "5 heads do not divide text's 48"),
        ({"num_attention_heads": 3}, "crosses streams of different heads"),
    ],
)
def test_structures_that_are_unknown(uniter, change, pattern):
    config, state = uniter
    with pytest.raises(UsageError, match=pattern):
        from_volta(config | change, state)


def test_files_of_configurations_that_cannot_be_read(tmp_path):
    with pytest.raises(InputNotFound, match="absent.json cannot be read: No such file"):
        from_volta(tmp_path / "absent.json", {})
    for content, pattern in (("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "holds no JSON object")):
        (tmp_path / "odd.json").write_text(content)
        with pytest.raises(UsageError, match=f"odd.json {pattern}"):
            from_volta(tmp_path / "odd.json", {})


def test_unknown_encoder():
    with pytest.raises(UsageError, match="unknown encoder 'flava'; choose from lxmert"):
        load_encoder("flava")
    assert encoder_config("uc2") is encoder_config(encoder_config("uc2"))
