"""BLIP-2 and PaliGemma from what a store has of their image sides, in the place of pixels."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import roivault
from cache import Regions, StoreMismatch, open_store
from cache.tensor_files import INDEX
from consumers.models import load_model
from consumers.models.data import ModelData, StoredPictures
from consumers.models.image_side import check_store
from consumers.models.images import FolderOfImages
from consumers.tasks import Example, load_task

from ...conftest import write_examples
from .small_writers import save_blip2, save_paligemma, save_siglip

PICTURES = ("d89a4889331ce042", "0a1b2c3d4e5f6071")
QUESTIONS = ("What color is it ?", "Is it a red bus on a green road ?")
EXAMPLES = [Example(f"{text}{name}", text, ((name,),), answered_in="fr") for text in QUESTIONS for name in PICTURES]
MODELS = {"blip2": "t5", "blip2-opt": "opt", "paligemma": ""}


@pytest.fixture(params=MODELS)
def model(request, tmp_path, save_tokenizer):
    """Its name and folder."""
    name, text = request.param.partition("-")[0], MODELS[request.param]
    folder = tmp_path / "model"
    save_blip2(folder, save_tokenizer, text, 0.3) if name == "blip2" else save_paligemma(folder, save_tokenizer, 0.3)
    return name, folder


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(5)
    (tmp_path / "images").mkdir()
    for number, name in enumerate(PICTURES):
        block = rng.integers(0, 256, (5 + number, 7, 3), dtype=np.uint8)
        Image.fromarray(np.kron(block, np.ones((9, 9, 1), np.uint8))).save(
            tmp_path / "images" / f"{name}.jpg", quality=95
        )
    return tmp_path / "images"


def extract(images, store, model, *more):
    line = ["extract", f"open_images:{images}", "-o", store, "--model", model, "--device", "cpu", "--threads", 1]
    assert roivault.main([str(one) for one in [*line, "--quiet", *more]]) == 0
    return store


def test_a_store_is_answered_as_its_pixels_are(model, images, tmp_path):
    name, folder = model
    network = load_model(name, folder)
    store = extract(images, tmp_path / "p.roi", f"{name}:{folder}", "--dtype", "float32")
    seen = ModelData(EXAMPLES, FolderOfImages(images), network, 40)
    stored = ModelData(EXAMPLES, StoredPictures(open_store(store)), network, 40)
    assert seen.notes == stored.notes == []
    first, second = (data.inputs(range(4), data.images[:, 0].tolist()) for data in (seen, stored))
    assert first[0].shape == (4, 3, 12, 12) and second[0].shape == (4, 10 if name == "blip2" else 9, 16)
    more = {}
    if network.network.config.get_text_config().is_encoder_decoder:
        more["decoder_input_ids"] = torch.zeros(4, 1, dtype=torch.long)
    with torch.inference_mode():
        said = network.tower(first[0]).last_hidden_state
        torch.testing.assert_close(network.tower(second[0]).last_hidden_state, said, rtol=0, atol=1e-5)
        one, other = (
            network.network(**dict(zip(network.inputs, batch, strict=True)), **more).logits for batch in (first, second)
        )
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
        ids = [
            network.network.generate(
                **dict(zip(network.inputs, batch, strict=True)), do_sample=False, **network.generation
            )
            for batch in (first, second)
        ]
        assert torch.equal(*ids) and network.answers(first, None) == network.answers(second, None)
        blank = network.network(**dict(zip(network.inputs, (0 * second[0], *second[1:]), strict=True)), **more).logits
    assert (blank - other).abs().max() > 1e-3  # the picture matters
    assert (other[0] - other[1]).abs().max() > 1e-3


def evaluate(model, tmp_path, capsys, code=0, **given):
    """The predictions and the result of the verb, or what it says in refusing."""
    name, folder = model
    annotations = tmp_path / "annotations"
    write_examples(load_task("maxm", ".").examples, annotations)
    line = ["evaluate", "--encoder", name, "--checkpoint", folder, "--task", "maxm", "--language", "fr", "--json"]
    line += ["--annotations", annotations, "--out", tmp_path / "runs", "--quiet"]
    line += [part for option, value in given.items() for part in (f"--{option}", value)]
    capsys.readouterr()
    assert roivault.main([str(one) for one in line]) == code
    said = capsys.readouterr()
    if code:
        return " ".join(f"{said.err} {said.out}".split())
    result = json.loads(said.out)[0]["result"]
    rows = json.loads((tmp_path / "runs" / result["predictions"]).read_text())
    return [row["prediction"] for row in rows], result


@pytest.mark.parametrize("model", ["blip2", "paligemma"], indirect=True)
def test_the_verbs_extract_and_evaluate_agree_with_pixels(model, images, tmp_path, capsys):
    name, folder = model
    pixels, result = evaluate(model, tmp_path, capsys, images=images)
    exact = extract(images, tmp_path / "exact.roi", f"{name}:{folder}", "--dtype", "float32")
    stored, again = evaluate(model, tmp_path, capsys, store=exact)
    assert stored == pixels and again["accuracy"] == result["accuracy"] and again["n"] == len(pixels) == 3
    assert again["notes"] == result["notes"] == []
    half = extract(images, tmp_path / "half.roi", f"{name}:{folder}")
    _, again = evaluate(model, tmp_path, capsys, store=half)
    assert again["notes"] == ["patches were made or kept in float16: answers may differ from those to pixels"]


@pytest.mark.parametrize("model", ["paligemma"], indirect=True)
def test_a_store_or_pictures_are_given_and_not_both(model, images, tmp_path, capsys):
    said = evaluate(model, tmp_path, capsys, 2, images=images, store=tmp_path / "p.roi")
    assert "one of the two" in said


@pytest.mark.parametrize("model", ["blip2", "paligemma"], indirect=True)
def test_stores_of_other_image_sides_are_refused(model, images, tmp_path, capsys, save_tokenizer):
    from safetensors.torch import load_file, save_file

    name, folder = model
    siglip = tmp_path / "siglip"
    save_siglip(siglip, 9)
    wrong = extract(images, tmp_path / "siglip.roi", f"siglip:{siglip}", "--dtype", "float32")
    said = evaluate(model, tmp_path, capsys, 78, store=wrong)
    assert f"the store has what siglip:{siglip} made: extract with --model {name}:{folder}" in said
    store = extract(images, tmp_path / "p.roi", f"{name}:{folder}", "--dtype", "float32")
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    tensor = next(one for one in files if one.endswith("post_layernorm.bias"))
    state = load_file(folder / files[tensor])
    save_file(state | {tensor: state[tensor] + 1}, folder / files[tensor], {"format": "pt"})
    assert "has other weights" in evaluate(model, tmp_path, capsys, 78, store=store)


@pytest.mark.parametrize("model", ["blip2", "paligemma"], indirect=True)
def test_records_that_do_not_fit_are_refused(model):
    name, folder = model
    network = load_model(name, folder)

    def record(patches, dim, whole):
        boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (patches, 1))
        embedding = None if whole is None else np.zeros(whole, np.float32)
        return Regions("p", 9, 9, boxes, np.zeros((patches, dim), np.float32), global_features=embedding)

    network.look_at(record(9, 16, 16))
    for bad in (record(9, 12, 16), record(4, 16, 16)):
        with pytest.raises(StoreMismatch, match=f"reads 9 patches of 16 numbers.*--model {name}:"):
            network.look_at(bad)
    for bad in (record(9, 16, None), record(9, 16, 12)):
        if name == "blip2":
            with pytest.raises(StoreMismatch, match="reads the class token"):
                network.look_at(bad)
        else:
            network.look_at(bad)
    with pytest.raises(StoreMismatch, match="the store has what something unknown made"):
        check_store(name, str(folder), {})
    with pytest.raises(StoreMismatch, match="given boxes by"):
        check_store(name, str(folder), {"preset": f"{name}:x", "given_boxes": True})
