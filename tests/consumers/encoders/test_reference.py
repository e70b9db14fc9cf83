"""Outputs beside those of the published code: all eleven models, weights by rule, quirks included."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from consumers.encoders import from_volta, losses

MODELS = (
    "muniter xuniter uc2 m3p lxmert uniter vilbert visualbert vl-bert extra_vilbert_orig extra_lxmert_orig"
).split()
HEADS = ("xvnli", "gqa", "nlvr2", "retrieval")
TOLERANCE, LOSS_TOLERANCE = 2e-5, 1e-4
PAIRS = ([0, 0, 1, 1], [0, 1, 1, 0])  # text and image of each item of the NLVR2 batch
OPTIONS = ([0, 1, 0, 1, 1, 0, 1, 0], [0, 0, 1, 0, 1, 1, 0, 1])  # and of the four options of two retrieval items


def differs(name, ours, wanted):
    wanted = torch.from_numpy(wanted)
    assert ours.shape == wanted.shape, f"{name}: {tuple(ours.shape)} for {tuple(wanted.shape)}"
    return (ours - wanted).abs().max().item()


def all_logits(encoder, inputs):
    """Logits of the four heads, each over the batch that the goldens were made with."""
    ids, input_mask, features, locations, region_mask = inputs

    def batch(texts, images):
        return encoder(ids[texts], input_mask[texts], features[images], locations[images], region_mask[images])

    output = encoder(*inputs)
    logits = {name: encoder.head(name)(output) for name in ("xvnli", "gqa")}
    logits["nlvr2"] = encoder.head("nlvr2")(batch(*PAIRS))
    logits["retrieval"] = encoder.head("retrieval")(batch(*OPTIONS))
    return output, logits


def all_losses(logits):
    """(loss, hits) by task, for the targets of the goldens."""

    def one_hot(labels, name):
        return F.one_hot(torch.tensor(labels), logits[name].shape[1]).float()

    options = logits["retrieval"].reshape(-1, 4)
    first = torch.zeros(len(options), dtype=torch.long)
    found = {}
    for name, labels, loss in (
        ("xvnli", [2, 0], losses.mean_binary),
        ("gqa", [7, 3], losses.summed_binary),
        ("nlvr2", [1, 0], losses.mean_binary),
    ):
        target = one_hot(labels, name)
        found[name] = loss(logits[name], target), losses.correct(logits[name], target)
    hits = losses.correct(options, F.one_hot(first, 4))
    found["retrieval_ce"] = losses.cross_entropy(options, first), hits
    found["retrieval_triplet"] = losses.triplet(options), hits
    return found


def stages(encoder, inputs):
    """Every array that a golden case may hold, by name, but for the logits."""
    ids, input_mask, features, locations, region_mask = inputs
    output = encoder(*inputs)
    text, regions = encoder.embed_text(ids, input_mask), encoder.embed_regions(features, locations, region_mask)
    if encoder.config.image_embedding == "m3p":
        yield "emb_joint", encoder.join_sequence(text, regions)[0]
        yield "seq_joint", torch.cat((output.regions, output.text), 1)
        yield "pooled", output.pooled
        return
    if encoder.config.first_crossing:  # these come out of the embedding calls a few sublayers on
        words, visual = encoder.text_embed(ids), encoder.image_embed(features, locations, encoder.text_embed)
    else:
        words, visual = encoder.join(text, regions)
    yield "emb_t", words
    yield "emb_v", visual
    for n in range(1, len(encoder.blocks)):
        words, visual = encoder.run(words, visual, input_mask.bool(), region_mask.bool(), n - 1, n)
        yield f"sub{n}_t", words
        yield f"sub{n}_v", visual
    names = ("seq_t", "seq_v", "pooled_t", "pooled_v", "pooled")
    yield from ((name, value) for name, value in zip(names, output, strict=True) if value is not None)


def load(golden, model, golden_weights, **options):
    data = json.loads((golden / f"{model}.json").read_text("utf-8"))
    return data, from_volta(data["config"], golden_weights(data["params"]), HEADS, **options)


def case_inputs(arrays, case):
    names = ("input_ids", "input_mask", f"{case}/feats", f"{case}/locs", f"{case}/img_mask")
    return tuple(torch.from_numpy(arrays[name]) for name in names)


@pytest.mark.parametrize("case", ["main", "varreg"])
@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_every_array_of_the_goldens(golden, golden_weights, model, case):
    data, encoder = load(golden, model, golden_weights, legacy=True)
    with np.load(golden / f"{model}.npz") as file:
        arrays = dict(file)
    inputs = case_inputs(arrays, case)
    wanted = {name.split("/")[1] for name in arrays if name.startswith(f"{case}/") and "/f64/" not in name}
    wanted -= {"feats", "locs", "img_mask"}
    _, logits = all_logits(encoder, inputs)
    ours = dict(stages(encoder, inputs)) | {f"logits_{name}": value for name, value in logits.items()}
    errors = {name: differs(name, ours[name], arrays[f"{case}/{name}"]) for name in sorted(wanted)}
    assert max(errors.values()) < TOLERANCE, errors
    for name, (loss, hits) in all_losses(logits).items():
        golden_loss, golden_hits, _ = data["losses_[loss,score,batch]"][case][name]
        assert abs(loss.item() - golden_loss) < LOSS_TOLERANCE, name
        assert hits.item() == golden_hits, name


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_double_precision_agrees_to_many_digits(golden, golden_weights, model):
    _, encoder = load(golden, model, golden_weights, legacy=True)
    encoder.double()
    with np.load(golden / f"{model}.npz") as file:
        arrays = dict(file)
    for case in ("main", "varreg"):
        ids, input_mask, features, locations, region_mask = case_inputs(arrays, case)
        output, logits = all_logits(encoder, (ids, input_mask, features.double(), locations.double(), region_mask))
        ours = {"pooled": output.pooled} | {f"logits_{name}": value for name, value in logits.items()}
        tolerance = 1e-6 if model == "m3p" else 1e-11  # M3P's published code rounds to float32 on the way
        for name, value in ours.items():
            assert differs(name, value, arrays[f"{case}/f64/{name}"]) < tolerance, name


@torch.no_grad()
def test_vl_bert_samples_alone(golden, golden_weights):
    _, encoder = load(golden, "vl-bert", golden_weights, legacy=True)
    with np.load(golden / "vl-bert.npz") as file:
        inputs = case_inputs(dict(file), "main")
    with np.load(golden / "vl-bert_single.npz") as alone:
        for i in range(2):
            output = encoder(*(x[i : i + 1] for x in inputs))
            for name, value in zip(("seq_t", "seq_v", "pooled_t", "pooled_v"), output, strict=False):
                assert differs(name, value, alone[f"s{i}_{name}"]) < TOLERANCE, (i, name)


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_numbers_that_travel_with_the_tests(reference, golden_weights, model):
    models, arrays = reference
    entry = models[model]
    encoder = from_volta(entry["config"], golden_weights(entry["params"]), HEADS, legacy=True)
    named = {key: torch.from_numpy(arrays[name]) for key, name in entry["arrays"].items()}
    features, region_mask = named["regions"].float() / 8, named["region_mask"].long()
    if entry["global"]:
        counts = region_mask.sum(1) - 1
        means = torch.stack([rows[:n].mean(0) for rows, n in zip(features, counts, strict=True)])
        features = torch.cat((means[:, None], features), 1)
    input_mask = torch.from_numpy(arrays["input_mask"]).long()
    inputs = named["text"].long(), input_mask, features, named["locations"], region_mask
    output, logits = all_logits(encoder, inputs)
    assert differs("pooled", output.pooled, arrays[f"{model}/pooled"]) < TOLERANCE
    for name, value in logits.items():
        assert differs(name, value, arrays[f"{model}/logits_{name}"]) < TOLERANCE, name
    for name, (loss, _) in all_losses(logits).items():
        assert abs(loss.item() - entry["losses"][name]) < LOSS_TOLERANCE, name
