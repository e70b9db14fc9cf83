"""OSCAR and OSCAR+ beside the outputs of the published code."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cache import UsageError, WeightsError
from consumers.encoders import from_volta, load_encoder, losses
from consumers.encoders.inputs import InputError
from consumers.encoders.oscar import in_language
from consumers.encoders.tags import attention_between
from tests.consumers.conftest import SHARED

TOLERANCE, LOSS_TOLERANCE = 2e-5, 1e-4
HEADS = {"gqa": "gqa", "vqa": "gqa", "nlvr": "nlvr2", "ret": "retrieval", "pre": ""}
FULL_SIZE = {"gqa": ("gqa", 1853), "vqa": ("gqa", 3129), "nlvr2": ("nlvr2", 2), "retrieval": ("retrieval", 1)}
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def golden():
    path = SHARED / "golden" / "oscar"
    if not path.is_dir():
        pytest.skip(f"no golden data at {path}; set ROIVAULT_SHARED")
    return path


@pytest.fixture(scope="module")
def variants(golden, golden_weights):
    """Name -> (what is known of it, weights, its arrays, the encoder)."""
    meta = json.loads((golden / "meta.json").read_text("utf-8"))
    config = {"image_embeddings": "oscar", "num_attention_heads": meta["config"]["num_attention_heads"]}

    def build(name, double=False):
        known = meta["variants"][name]
        state = golden_weights(known["params"])
        head = HEADS[known["kind"]]
        heads = {head: 1 if head == "retrieval" else known["options"]["num_labels"]} if head else {}
        with np.load(golden / f"{name}.npz") as arrays:
            encoder = from_volta(config, state, heads)
            return known, state, dict(arrays), encoder.double() if double else encoder

    return build


@pytest.fixture(scope="module")
def given(golden):
    with np.load(golden / "inputs.npz") as arrays:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def inputs_of(given, kind, encoder):
    """The five inputs; segments are the golden's own, which begin at any token."""
    prefix = "pair_" if kind == "nlvr" else ""
    ids, mask, features, segments = (
        given[f"{prefix}{name}"] for name in ("input_ids", "attention_mask", "img_feats", "token_type_ids")
    )
    ids, mask, features, segments = (
        x.flatten(0, 1) if prefix else x for x in (ids, mask, features, segments)
    )  # both images of an item in a row
    encoder.segments = lambda input_ids: segments
    length = ids.shape[1]
    return ids, mask[:, :length], features[..., :-6], features[..., -6:], mask[:, length:]


def stages(encoder, inputs):
    ids, input_mask, features, locations, region_mask = inputs
    embedded = encoder.embed_text(ids, input_mask), encoder.embed_regions(features, locations, region_mask)
    yield "emb_text", embedded[0].vectors
    yield "emb_img_linear", encoder.image_embed.linear(torch.cat((features, locations), -1).to(embedded[0].vectors))
    yield "emb_img", embedded[1].vectors
    joint = torch.cat([one.vectors for one in embedded], 1)
    mask = torch.cat([one.mask for one in embedded], 1)
    for layer in range(1, 13):
        joint = encoder.run_joint(joint, mask, (2 * layer - 2, 2 * layer - 1))
        yield f"layer{layer}", joint


def loss_of(kind, logits, given):
    if kind == "ret":
        return losses.mean_binary(logits[:, 0], given["ret_label"].float())
    if kind == "vqa":
        return losses.summed_binary(logits, given["vqa_target"])
    return losses.cross_entropy(logits, given["nlvr_label" if kind == "nlvr" else "gqa_label"].flatten())


def differs(ours, wanted):
    assert ours.shape == wanted.shape
    return (ours - torch.from_numpy(wanted)).abs().max().item()


def names(golden_folder):
    return sorted(path.stem for path in golden_folder.glob("*_*.npz"))


HELD = names(SHARED / "golden" / "oscar") or ["none"]


@pytest.mark.parametrize("name", HELD)
@torch.no_grad()
def test_every_array_of_the_goldens(golden, variants, given, name):
    known, state, arrays, encoder = variants(name)
    assert not encoder.report.fresh
    inputs = inputs_of(given, known["kind"], encoder)
    output = encoder(*inputs)
    ours = dict(stages(encoder, inputs)) | {"pooled": output.pooled}
    shown = [one for one in arrays if one.startswith(("emb", "layer", "pooled"))]
    errors = {one: differs(ours[one], arrays[one]) for one in shown}
    head = HEADS[known["kind"]]
    if head:
        logits = encoder.head(head)(output)
        wanted = arrays["logits"]
        errors["logits"] = differs(logits, wanted[:, 1:] - wanted[:, :1] if head == "retrieval" else wanted)
        assert abs(loss_of(known["kind"], logits, given).item() - known["loss"]) < LOSS_TOLERANCE
    else:
        skipped = [one for one in state if one.startswith("cls.")]
        assert skipped and set(encoder.report.skipped) == set(skipped)
    assert len(errors) >= 6 and max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("name", HELD)
@torch.no_grad()
def test_double_precision_agrees_to_many_digits(golden, variants, given, name):
    known, _, arrays, encoder = variants(name, double=True)
    output = encoder(*inputs_of(given, known["kind"], encoder))
    assert differs(output.pooled, arrays["f64/pooled"]) < 1e-11
    if known["kind"] in ("gqa", "vqa", "nlvr"):
        assert differs(encoder.head(HEADS[known["kind"]])(output), arrays["f64/logits"]) < 1e-11


@pytest.mark.parametrize("name", ["gqa_mlp", "nlvr_plus"])  # whose arrays are not there
@torch.no_grad()
def test_losses_of_hidden_layers(golden, golden_weights, given, name):
    meta = json.loads((golden / "meta.json").read_text("utf-8"))
    known = meta["variants"][name]
    head = HEADS[known["kind"]]
    config = {"image_embeddings": "oscar", "num_attention_heads": meta["config"]["num_attention_heads"]}
    encoder = from_volta(config, golden_weights(known["params"]), {head: known["options"]["num_labels"]})
    assert encoder.heads[head].deep and not encoder.report.fresh
    logits = encoder.head(head)(encoder(*inputs_of(given, known["kind"], encoder)))
    assert abs(loss_of(known["kind"], logits, given).item() - known["loss"]) < LOSS_TOLERANCE


@torch.no_grad()
def test_all_tokens_real_and_of_the_first_segment(variants, given):
    known, _, arrays, encoder = variants("gqa_plus")
    ids, mask, *image, region_mask = inputs_of(given, known["kind"], encoder)
    del encoder.segments
    output = encoder(ids, torch.ones_like(mask), *image, torch.ones_like(region_mask))
    assert differs(encoder.head("gqa")(output), arrays["logits_defaults"]) < TOLERANCE


@torch.no_grad()
def test_matches_are_probabilities_and_attention_may_be_given(variants, given):
    known, _, arrays, encoder = variants("ret_plus")
    inputs = inputs_of(given, known["kind"], encoder)
    assert differs(encoder.head("retrieval")(encoder(*inputs))[:, 0].sigmoid(), arrays["prob_match"].reshape(-1)) < 1e-6
    wanted = arrays["logits_mask3d"]
    logits = encoder.head("retrieval")(encoder(*inputs, attention=given["attention_mask_3d"]))
    assert differs(logits, wanted[:, 1:] - wanted[:, :1]) < TOLERANCE


def test_the_locations_are_those_of_the_collation(given):
    from cache import Regions
    from cache.dataset import collate_regions

    boxes, sizes = given["boxes"].numpy(), given["image_wh"].tolist()
    rows = [Regions(str(n), *sizes, one, np.ones((len(one), 2), np.float32)) for n, one in enumerate(boxes)]
    ours, wanted = collate_regions(rows, num_locations=6).locations, given["img_feats"][..., -6:]
    there = wanted.abs().sum(-1) > 0  # padding has no geometry there
    torch.testing.assert_close(ours[there], wanted[there], rtol=0, atol=1e-6)
    assert there.sum() >= 10


@pytest.mark.parametrize("task", FULL_SIZE)
def test_names_and_shapes_of_the_full_size_model(golden, task):
    published = json.loads((golden / "full_size_params.json").read_text("utf-8"))[f"{task}_plus"]
    head, labels = FULL_SIZE[task]
    with torch.device("meta"):
        encoder = load_encoder("oscar-plus", heads={head: labels})
    assert {one[0]: list(p.shape) for one, p in encoder.volta_parameters()} == published
    assert all(len(one) == 1 for one, _ in encoder.volta_parameters())


@pytest.mark.parametrize("parts", ["CL", "CR", "LR"])
def test_attention_between_parts(parts):
    segments = torch.tensor([[0, 0, 1, 1, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    found = attention_between(parts, segments, mask, torch.tensor([[1, 0]]))[0].int().tolist()
    apart = {"C": [1, 1, 0, 0, 0, 0, 0], "L": [0, 0, 1, 1, 0, 0, 0], "R": [0, 0, 0, 0, 0, 1, 0]}
    both = [a | b for a, b in zip(apart[parts[0]], apart[parts[1]], strict=True)]
    rows = {letter: both if letter in parts else own for letter, own in apart.items()}
    nothing = [0] * 7
    assert found == [rows["C"], rows["C"], rows["L"], rows["L"], nothing, rows["R"], nothing]
    with pytest.raises(UsageError, match="'RC' are not one of CL, CR, LR"):
        attention_between("RC", segments, mask, torch.tensor([[1, 0]]))


def test_tags_are_the_second_segment(shrunk):
    encoder = load_encoder(replace(shrunk("oscar-plus"), separator_id=3))
    ids = torch.tensor([[2, 7, 8, 3, 9, 3, 0], [2, 7, 3, 0, 0, 0, 0]])
    assert encoder.segments(ids).tolist() == [[0, 0, 0, 0, 1, 1, 0], [0] * 7]


@pytest.fixture
def saved(small_encoder, tmp_path):
    def save(heads=("gqa",), name="oscar-plus", **more):
        encoder = small_encoder(name, heads=heads)
        save_file({n: t.contiguous() for n, t in encoder.to_volta().items()} | more, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors"

    return save


def test_a_checkpoint_has_one_head(saved, shrunk):
    path = saved(**{"cls.seq_relationship.weight": torch.zeros(3, 24)})
    config = shrunk("oscar-plus")
    assert not load_encoder(config, path, heads=("gqa",)).report.fresh
    skipped = ["classifier.bias", "classifier.weight", "cls.seq_relationship.weight"]
    assert sorted(load_encoder(config, path).report.skipped) == skipped
    with pytest.raises(WeightsError, match=r"classifier\.weight is \(1842, 24\) in the checkpoint and \(2, 24\)"):
        load_encoder(config, path, heads=("retrieval",))
    with pytest.raises(WeightsError, match=r"unexpected tensors: 2: classifier\.(weight|bias)"):
        load_encoder(config, path, heads=("gqa", "vsr"))
    fresh = load_encoder(config, saved(()), heads=("nlvr2",)).report.fresh
    assert [one.removeprefix("heads.nlvr2.") for one in fresh if one.endswith("weight")] == [
        "hidden.weight", "norm.weight", "logits.weight",
    ]  # fmt: skip


def test_oscar_and_oscar_plus_are_told_apart(saved, shrunk):
    with pytest.raises(WeightsError, match=r"unexpected tensors: 2: bert\.LayerNorm"):
        load_encoder(shrunk("oscar"), saved())
    with pytest.raises(WeightsError, match=r"missing tensors: 2: bert\.LayerNorm"):
        load_encoder(shrunk("oscar-plus"), saved(name="oscar"))


@pytest.mark.parametrize("name", ["oscar-plus-emb", "oscar-plus-ada"])
def test_words_of_another_language(name, saved, shrunk, inputs, tmp_path):
    path, config = saved(name=name), shrunk(name)
    english = load_encoder(config, path, heads=("gqa",))
    assert not any(p.requires_grad for n, p in english.named_parameters() if "text_embed." in n or ".language." in n)
    state = {n: t + 1 for n, t in english.to_volta().items() if n == WORDS or ".language." in n}
    state[WORDS] = torch.randn(95, 24)
    save_file(state, tmp_path / "de.safetensors")
    in_language(path, tmp_path / "de.safetensors", tmp_path / "model-de.safetensors")
    german = load_encoder(config, tmp_path / "model-de.safetensors", heads=("gqa",))
    assert german.config.vocab_size == 95 and not german.report.fresh
    ours = german.to_volta()
    assert all(torch.equal(ours[n], state[n] if n in state else t) for n, t in english.to_volta().items())
    assert len(state) == (49 if "ada" in name else 1)
    german(*inputs(german.config))
    save_file({"other": torch.zeros(1)}, tmp_path / "none.safetensors")
    with pytest.raises(WeightsError, match="none.safetensors has no bert"):
        in_language(path, tmp_path / "none.safetensors", tmp_path / "out.safetensors")
    with pytest.raises(WeightsError, match="none.safetensors has no bert.*: it is no checkpoint of OSCAR"):
        in_language(tmp_path / "none.safetensors", tmp_path / "de.safetensors", tmp_path / "out.safetensors")
    save_file({f"module.{n}": t for n, t in state.items()}, tmp_path / "parallel.safetensors")
    in_language(path, tmp_path / "parallel.safetensors", tmp_path / "same.safetensors")
    assert (tmp_path / "same.safetensors").read_bytes() == (tmp_path / "model-de.safetensors").read_bytes()
    save_file(state | {WORDS: torch.zeros(95, 25)}, tmp_path / "wide.safetensors")
    with pytest.raises(WeightsError, match=r"\(95, 25\) in .*wide"):
        in_language(path, tmp_path / "wide.safetensors", tmp_path / "out.safetensors")


@pytest.mark.parametrize("name", [WORDS, "classifier.0.weight"])
def test_tensors_without_rows_fit_nothing(name, saved, shrunk):
    with pytest.raises(WeightsError, match=r"does not fit the encoder oscar-plus-emb"):
        load_encoder(shrunk("oscar-plus-emb"), saved((), **{name: torch.tensor(1.0)}), heads=("gqa",))


@torch.no_grad()
def test_attention_has_a_row_and_a_column_for_each(small_encoder, inputs):
    encoder = small_encoder("oscar-plus")
    ids, mask, features, locations, region_mask = inputs(encoder.config)
    count = ids.shape[1] + features.shape[1]
    everything = torch.ones(len(ids), count, count, dtype=torch.bool)
    encoder(ids, mask, features, locations, region_mask, everything)
    for wrong in (everything[:, :-1], everything[0], everything[:, :, :1]):
        with pytest.raises(InputError, match=rf"attention has shape .*expected \({len(ids)}, {count}, {count}\)"):
            encoder(ids, mask, features, locations, region_mask, wrong)


@torch.no_grad()
def test_adapters_add_to_each_layer(small_encoder, inputs):
    """Those whose way up is zero change nothing; words alone go through their language's."""
    encoder, plain = small_encoder("oscar-plus-ada"), small_encoder("oscar-plus")
    plain.load_state_dict({n: p for n, p in encoder.state_dict().items() if not n.startswith("adapters.")})
    tensors = inputs(encoder.config)
    for layer in encoder.adapters:
        for module in layer.modules():
            if hasattr(module, "up"):
                module.up.weight.zero_()
                module.up.bias.zero_()
    assert torch.equal(encoder(*tensors).pooled, plain(*tensors).pooled)
    added = torch.randn(24)
    encoder.adapters[11].language.up.bias.copy_(added)
    ours, theirs = encoder(*tensors), plain(*tensors)
    assert torch.equal(ours.regions, theirs.regions)
    read = []
    plain.blocks[23].text.norm.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    plain(*tensors)
    wanted = plain.blocks[23].text.norm(read[0][:, : ours.text.shape[1]] + added)
    torch.testing.assert_close(ours.text, wanted, rtol=0, atol=1e-5)


def test_ranks_of_matches(golden):
    from consumers.metrics import ranks

    known = json.loads((golden / "packing.json").read_text("utf-8"))["retrieval_ranks"]
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(b"oscar/sim"))).standard_normal(48)
    scores = draw.reshape(known["num_images"], -1).T  # captions by pictures
    by_caption, by_picture = ranks(scores, np.arange(len(scores)) // known["captions_per_image"])
    assert (by_caption.tolist(), by_picture.tolist()) == (known["t2i"], known["i2t"])
