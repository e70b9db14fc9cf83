"""Checkpoints: every tensor accounted for, in every file format, or an error that names it."""

import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from cache import InputNotFound, WeightsError
from consumers.encoders import list_encoders, load_encoder, read_checkpoint, save_encoder


@pytest.fixture(scope="module")
def state(small_encoder):
    """A fine-tuned UNITER in Volta's names, twins included."""
    encoder = small_encoder("uniter", heads=("xvnli", "gqa"))
    return {name: tensor.clone() for name, tensor in encoder.to_volta().items()}


@pytest.fixture
def load(shrunk, tmp_path):
    def from_state(state, name="uniter", **options):
        path = tmp_path / "pytorch_model.bin"
        torch.save(state, path)
        return load_encoder(shrunk(name), path, **options)

    return from_state


WORD = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, "safetensors") for name in list_encoders()), ("uniter", "bin"), ("m3p", "pth")]
)
def test_formats(name, suffix, shrunk, small_encoder, inputs, tmp_path):
    encoder = small_encoder(name, heads=("xvnli", "nlvr2"))
    path = tmp_path / f"model.{suffix}"
    if suffix == "safetensors":
        save_encoder(encoder, path)
    else:
        torch.save(encoder.to_volta(), path)
    again = load_encoder(shrunk(name), path, heads=("nlvr2", "retrieval"))
    tensors = inputs(encoder.config)
    with torch.no_grad():
        output = again(*tensors)
        assert torch.equal(output.pooled, encoder(*tensors).pooled)
        assert torch.equal(again.head("nlvr2")(output), encoder.head("nlvr2")(output))
    assert sorted(again.report.skipped) == ["clfs_dict.TASK19.bias", "clfs_dict.TASK19.weight"]
    assert again.report.fresh == ("heads.retrieval.logits.weight", "heads.retrieval.logits.bias")
    assert again.report.source == str(path)


def test_report_names_tied_tensors(load, state):
    report = load(state, heads=("xvnli",)).report
    segments = ("bert.embeddings.token_type_embeddings.weight", "bert.embeddings.image_token_type_embeddings.weight")
    assert segments in report.tied
    assert len(report.tied) == 193
    assert str(report).startswith("213 tensors from ")


def test_aliases_may_be_missing(load, state):
    fewer = {name: t for name, t in state.items() if ".v_" not in name or "v_LayerNorm" in name or "v_pooler" in name}
    fewer = {name: t for name, t in fewer.items() if "image_token_type" not in name}
    assert torch.equal(load(fewer).blocks[0].text.q.weight, state["bert.encoder.layer.0.attention_self.query.weight"])


def test_tied_tensors_that_differ(load, state):
    twin = "bert.encoder.layer.4.attention_self.v_query.weight"
    torn = state | {twin: state[twin] + 1}
    with pytest.raises(WeightsError, match=r"tied tensors that differ.*4\.attention_self\.query\.weight and .*v_query"):
        load(torn)
    assert torch.equal(load(torn, legacy=True).blocks[4].text.q.weight, torn[twin])


@pytest.mark.parametrize("gone", [WORD, "bert.t_pooler.dense.bias", "bert.embeddings.v_LayerNorm.weight"])
def test_missing(load, state, gone):
    with pytest.raises(WeightsError, match=f"missing tensors: 1: {gone}"):
        load({name: t for name, t in state.items() if name != gone})


def test_half_a_head_is_missing(load, state):
    part = {name: t for name, t in state.items() if name != "clfs_dict.TASK15.logit_fc.3.bias"}
    with pytest.raises(WeightsError, match=r"missing tensors: 1: clfs_dict\.TASK15\.logit_fc\.3\.bias"):
        load(part, heads=("gqa",))


def test_unexpected(load, state):
    with pytest.raises(WeightsError, match=r"unexpected tensors: 1: bert\.encoder\.layer\.24\.output\.dense\.bias"):
        load(state | {"bert.encoder.layer.24.output.dense.bias": torch.zeros(24)})


def test_other_shapes_name_both(load, state):
    with pytest.raises(WeightsError, match=rf"{WORD} is \(90, 24\) in the checkpoint and \(80, 24\) in the encoder"):
        load(state | {WORD: torch.zeros(90, 24)})


def test_an_xlm_r_model_for_muniter(monkeypatch):
    """Full-size shapes, without their memory: the mismatch is found before anything is filled in."""
    table = torch.zeros(1, 1).expand(250002, 768)
    state = {"roberta.embeddings.word_embeddings.weight": table, "lm_head.bias": torch.zeros(1)}
    monkeypatch.setattr("consumers.encoders.registry.read_checkpoint", lambda path: state)
    with pytest.raises(
        WeightsError, match=r"xlm\.bin.*\n.*word_embeddings\.weight is \(250002, 768\).*\(119547, 768\)"
    ):
        load_encoder("muniter", "xlm.bin")


PRETRAINING = (
    "cls.predictions.bias cls.predictions.transform.dense.weight cls.predictions.transform.LayerNorm.bias "
    "cls.predictions.decoder.weight cls.bi_seq_relationship.weight cls.imagePredictions.transform.dense.bias "
    "cls.imagePredictions.decoder_dict.0.weight bert.embeddings.position_ids clfs_dict.TASK12.logit_fc.0.weight"
).split()


def test_pretraining_heads_are_skipped_by_name(load, state):
    report = load(state | {name: torch.zeros(2) for name in PRETRAINING}, heads=("xvnli", "gqa")).report
    assert set(report.skipped) == set(PRETRAINING)
    with pytest.raises(WeightsError, match=r"unexpected tensors: 1: cls\.captioning\.weight"):
        load(state | {"cls.captioning.weight": torch.zeros(2)})


def test_m3p_pretraining_heads(load, small_encoder):
    extra = {f"bert.encoder.{part}.proj.weight": torch.zeros(2) for part in ("pred_layer", "pred_obj_layer")}
    encoder = load(small_encoder("m3p").to_volta() | extra, name="m3p")
    assert set(encoder.report.skipped) == set(extra)
    used = {name: t for name, t in encoder.to_volta().items() if "refine_embeddings" not in name}
    assert len(load(used, name="m3p").report.fresh) == 98


def test_old_names(load, state):
    old = {"module." + name: tensor for name, tensor in state.items()}
    for new_part, old_part in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        old = {name.replace(new_part, old_part): tensor for name, tensor in old.items()}
    assert torch.equal(load(old).text_embed.norm.weight, state["bert.embeddings.LayerNorm.weight"])


def test_roberta_names(load, small_encoder):
    state = small_encoder("xuniter").to_volta()
    encoder = load({name.replace("bert.", "roberta.", 1): t for name, t in state.items()}, name="xuniter")
    assert torch.equal(encoder.text_embed.word.weight, state[WORD])


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model"])
def test_training_checkpoints_are_unwrapped(load, state, key):
    assert torch.equal(load({key: state, "epoch": 3}).text_embed.word.weight, state[WORD])


def test_retrieval_heads_of_both_tasks(load, small_encoder):
    encoder = small_encoder("uniter", heads=("retrieval",))
    wit = {name.replace("TASK8", "TASK20"): t for name, t in encoder.to_volta().items()}
    loaded = load(wit, heads=("retrieval",))
    assert torch.equal(loaded.heads["retrieval"].logits.weight, encoder.heads["retrieval"].logits.weight)
    assert "clfs_dict.TASK20.weight" in loaded.to_volta() and loaded.report.fresh == ()


def test_loading_copies(load, state, shrunk, tmp_path):
    encoder = load({name: t.half() for name, t in state.items()})
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert not encoder.training


def test_directories(shrunk, small_encoder, tmp_path):
    with pytest.raises(InputNotFound, match="no checkpoint in .*model.safetensors"):
        load_encoder(shrunk("uniter"), tmp_path)
    save_encoder(small_encoder("uniter"), tmp_path / "model.safetensors")
    assert load_encoder(shrunk("uniter"), tmp_path).report.fresh == ()


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


def test_files_that_are_not_checkpoints(tmp_path):
    with pytest.raises(InputNotFound, match="none.bin does not exist"):
        read_checkpoint(tmp_path / "none.bin")
    evil = tmp_path / "evil.bin"
    evil.write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(WeightsError, match="evil.bin asks to run .*exec, which no checkpoint needs") as refused:
        read_checkpoint(evil)
    assert "weights_only" not in str(refused.value)
    for name, content in (("cut.safetensors", b"\x10\0\0\0\0\0\0\0{"), ("cut.bin", b"PK\x03\x04")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(WeightsError, match=f"{name} cannot be read as a checkpoint"):
            read_checkpoint(tmp_path / name)
    torch.save({"a": torch.zeros(1), "epoch": 3}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="other.pth does not hold a state dict"):
        read_checkpoint(tmp_path / "other.pth")


def test_files_made_to_fill_the_memory_are_refused(tmp_path, odd_tensors):
    for kind, tensor in odd_tensors.items():
        torch.save({"good": torch.ones(2), kind: tensor}, tmp_path / "x.bin")
        with pytest.raises(WeightsError, match=rf"x\.bin: {kind} is not a plain tensor"):
            read_checkpoint(tmp_path / "x.bin")
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "x.bin")
    with zipfile.ZipFile(tmp_path / "x.bin") as plain, zipfile.ZipFile(tmp_path / "bomb.bin", "w") as bomb:
        for member in plain.infolist():
            bomb.writestr(member.filename, plain.read(member), zipfile.ZIP_DEFLATED)
    with pytest.raises(WeightsError, match="bomb.bin unpacks to more than it is"):
        read_checkpoint(tmp_path / "bomb.bin")


def test_saved_files_hold_each_tensor_once(small_encoder, tmp_path):
    encoder = small_encoder("uniter")
    save_encoder(encoder, tmp_path / "model.safetensors")
    held = read_checkpoint(tmp_path / "model.safetensors")
    assert len(held) == len(list(encoder.parameters())) < len(encoder.to_volta())
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    assert list(read_checkpoint(tmp_path / "a.safetensors")) == ["a"]
