import hashlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

import transformers

import extractor.grid  # noqa: F401  it registers how images are cut for a CentreCrop
from cache import InputNotFound, UsageError, WeightsError
from extractor.configs import CentreCrop
from extractor.extractor import Extractor, load_extractor
from extractor.images import DecodePolicy
from extractor.preprocess import frame, network_input
from extractor.presets import get_preset, list_extractors
from extractor.transformer_configs import KINDS, WRITERS
from extractor.weights_cache import import_weights
from tests.extractor.grid_models import save_small

PAIRS = tuple(kind for kind in KINDS if kind not in WRITERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A small model of each kind, in a folder; those of models that write in several files, as they are published."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in made.items():
        save_small(kind, folder, shard="20KB" if kind in WRITERS else "5GB")
    return made


def pil_processor(kind: str, folder: Path):
    """The image processor on Pillow, which all of them were before transformers 5."""
    family = {"clip": "CLIP", "vit": "ViT", "blip2": "Blip"}.get(kind, "Siglip")
    name = f"{family}ImageProcessor"
    return getattr(transformers, name + "Pil", getattr(transformers, name)).from_pretrained(folder)


def same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is other is None or np.array_equal(one, other)


def said_by_transformers(kind: str, folder: Path, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Patches and embedding as a user of transformers gets them."""
    pixels = pil_processor(kind, folder)(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        if kind == "blip2":
            model = transformers.Blip2ForConditionalGeneration.from_pretrained(folder).eval()
            hidden = model.vision_model(pixel_values=pixels).last_hidden_state
            return hidden[0, 1:].numpy(), hidden[0, 0].numpy()
        if kind == "paligemma":
            model = transformers.PaliGemmaForConditionalGeneration.from_pretrained(folder).eval()
            return model.model.vision_tower(pixel_values=pixels).last_hidden_state[0].numpy(), None
        if kind == "vit":
            model = transformers.ViTModel.from_pretrained(folder).eval()
            hidden = model(pixel_values=pixels).last_hidden_state
            return hidden[0, 1:].numpy(), hidden[0, 0].numpy()
        if kind == "clip":
            model = transformers.CLIPVisionModelWithProjection.from_pretrained(folder).eval()
            found = model(pixel_values=pixels)
            return found.last_hidden_state[0, 1:].numpy(), found.image_embeds[0].numpy()
        found = transformers.SiglipVisionModel.from_pretrained(folder).eval()(pixel_values=pixels)
        return found.last_hidden_state[0].numpy(), found.pooler_output[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_records_hold_what_transformers_says(folders, pictures, kind):
    extractor = load_extractor(f"{kind}:{folders[kind]}", device="cpu")
    for picture, regions in zip(pictures, extractor(pictures), strict=True):
        patches, embedding = said_by_transformers(kind, folders[kind], picture)
        assert np.array_equal(regions.features, patches) and regions.features.shape == (16, extractor.dim)
        assert same(regions.global_features, embedding)
        assert regions.scores is None and regions.class_ids is None and regions.attr_ids is None


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_those_of_the_image_processor_to_the_bit(folders, kind):
    rng = np.random.default_rng(0)
    rule = get_preset(f"{kind}:{folders[kind]}").preprocess
    processor = pil_processor(kind, folders[kind])
    sizes = [(64, 64), (64, 65), (63, 64), (1, 1), (1, 90), (90, 1), (427, 640), (640, 427), (100, 999), (37, 36)]
    sizes += [tuple(rng.integers(2, 400, 2)) for _ in range(40)]
    for height, width in sizes:
        coarse = rng.integers(0, 256, (height // 7 + 1, width // 7 + 1, 3), dtype=np.uint8)
        picture = np.kron(coarse, np.ones((7, 7, 1), np.uint8))[:height, :width]
        mine = network_input(rule, picture, frame(rule, height, width))
        theirs = processor(Image.fromarray(picture), return_tensors="np")["pixel_values"][0]
        assert np.array_equal(mine.numpy(), theirs), (height, width)


def test_of_a_sliver_only_what_is_left_is_resized(folders, monkeypatch):
    rule = get_preset(f"clip:{folders['clip']}").preprocess
    picture = np.kron(np.random.default_rng(1).integers(0, 256, (61, 91, 3), np.uint8), np.ones((7, 7, 1), np.uint8))
    to = frame(rule, *picture.shape[:2])
    whole = network_input(rule, picture, to)
    monkeypatch.setattr("extractor.grid.MOST_RESIZED", 0)
    part = network_input(rule, picture, to)
    assert not torch.equal(part, whole) and (part - whole).abs().max() < 12 / 255 / min(rule.std)


def test_inputs_at_the_published_size_are_those_of_the_image_processor(golden):
    for path in sorted((golden / "images").glob("*.png")):
        picture = np.asarray(Image.open(path).convert("RGB"))
        rule = get_preset("clip-vit-b32").preprocess
        mine = network_input(rule, picture, frame(rule, *picture.shape[:2])).numpy()
        pillow = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)()
        assert np.array_equal(mine, pillow(Image.fromarray(picture), return_tensors="np")["pixel_values"][0])
        # torchvision, the default since transformers 5, rounds otherwise here and there: by up to two of 255 levels
        other = transformers.CLIPImageProcessor()(Image.fromarray(picture), return_tensors="np")["pixel_values"][0]
        assert np.abs(mine - other).max() <= 2.01 / 255 / min(rule.std)


@pytest.mark.parametrize("size", [(90, 160), (160, 90), (64, 64), (61, 300)])
def test_a_cell_lies_where_its_patch_was_cut(folders, size):
    """Painting a cell's box changes that patch of the input most, and what lies in no box changes nothing."""
    preset = get_preset(f"clip:{folders['clip']}")
    extractor = load_extractor(preset.name, device="cpu")
    grey = np.full((*size, 3), 100, np.uint8)
    boxes = extractor([grey])[0].boxes
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= size[1]).all() and (boxes[:, 3] <= size[0]).all()
    rule, to = preset.preprocess, frame(preset.preprocess, *size)
    plain = network_input(rule, grey, to)
    for row, (x1, y1, x2, y2) in enumerate(boxes):
        painted = grey.copy()
        painted[round(y1) : max(round(y2), round(y1) + 1), round(x1) : max(round(x2), round(x1) + 1)] = 255
        change = (network_input(rule, painted, to) - plain).abs().sum(0).reshape(4, 16, 4, 16).sum((1, 3))
        assert change.flatten().argmax() == row
    left, top, right, bottom = (*boxes[:, :2].min(0), *boxes[:, 2:].max(0))
    square = min(size)
    assert right - left == pytest.approx(square, abs=1.5) and bottom - top == pytest.approx(square, abs=1.5)
    beside = np.full((*size, 3), 255, np.uint8)
    margin = 3 * square / 64 + 1  # the filter reaches that far
    keep = [int(max(top - margin, 0)), int(bottom + margin), int(max(left - margin, 0)), int(right + margin)]
    beside[keep[0] : keep[1], keep[2] : keep[3]] = 100
    assert torch.equal(network_input(rule, beside, to), plain)


def test_squeezed_images_have_cells_of_their_shape(folders):
    regions = load_extractor(f"vit:{folders['vit']}", device="cpu")([np.zeros((50, 200, 3), np.uint8)])[0]
    expected = [[x, y, x + 50, y + 12.5] for y, x in itertools.product(np.arange(0, 50, 12.5), range(0, 200, 50))]
    np.testing.assert_allclose(regions.boxes, expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_company_does_not_matter(folders, pictures, kind, precision):
    extractor = load_extractor(f"{kind}:{folders[kind]}", device="cpu", precision=precision)
    alone = [extractor([picture])[0] for picture in pictures]
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 41):
        for place, regions in enumerate(extractor([pictures[i] for i in order])):
            assert np.array_equal(regions.features, alone[order[place]].features)
            assert same(regions.global_features, alone[order[place]].global_features)


def test_given_boxes_are_the_mean_of_the_cells_under_them(folders, pictures):
    extractor = load_extractor(f"clip:{folders['clip']}", device="cpu")
    regions = extractor(pictures[:1])[0]
    boxes = np.concatenate((regions.boxes, [[*regions.boxes[0, :2], *regions.boxes[5, 2:]], [0, 0, 4, 4]]))
    given = extractor(pictures[:1], boxes=[boxes])[0]
    np.testing.assert_allclose(given.features[:16], regions.features, atol=1e-4)
    np.testing.assert_allclose(given.features[16], regions.features[[0, 1, 4, 5]].mean(0), atol=1e-4)
    np.testing.assert_allclose(given.features[17], regions.features[0], atol=1e-4)  # beside the crop: the nearest
    assert np.array_equal(given.boxes, boxes.astype(np.float32))
    assert np.array_equal(given.global_features, regions.global_features)
    alone = extractor(pictures[:1], boxes=[boxes[16:17]])[0]
    assert np.array_equal(alone.features[0], given.features[16])


@pytest.mark.parametrize("size", [(1, 1), (1, 30000), (30000, 1), (2, 5), (600, 20000)])
@pytest.mark.parametrize("kind", ["clip", "vit"])
def test_extreme_shapes_are_described(folders, kind, size):
    regions = load_extractor(f"{kind}:{folders[kind]}", device="cpu")([np.full((*size, 3), 128, np.uint8)])[0]
    assert (regions.height, regions.width) == size and len(regions) == 16
    assert (regions.boxes[:, 2:] > regions.boxes[:, :2]).all()


@pytest.mark.parametrize("kind", PAIRS)
def test_a_bare_encoder_is_the_same_model(folders, pictures, kind, tmp_path):
    """As it is saved without its text side or classifier: other names, the same tensors."""
    model = {"clip": "CLIPVisionModelWithProjection", "vit": "ViTModel", "siglip": "SiglipVisionModel"}[kind]
    getattr(transformers, model).from_pretrained(folders[kind]).save_pretrained(tmp_path)
    pil_processor(kind, folders[kind]).save_pretrained(tmp_path)
    whole, bare = (
        load_extractor(f"{kind}:{folder}", device="cpu")(pictures[:1])[0] for folder in (folders[kind], tmp_path)
    )
    assert np.array_equal(whole.features, bare.features) and np.array_equal(whole.global_features, bare.global_features)


def small(kind: str, folders: dict[str, Path], name: str):
    """A preset of a published name, shrunken to the model in a folder."""
    read = get_preset(f"{kind}:{folders[kind]}")
    return replace(get_preset(name), architecture=read.architecture, preprocess=read.preprocess)


def test_weights_are_a_file_or_the_folder_it_lies_in(folders, pictures):
    preset = small("clip", folders, "clip-vit-b32")
    file = folders["clip"] / "model.safetensors"
    made = [Extractor(preset, weights, "cpu", "auto", DecodePolicy()) for weights in (file, folders["clip"])]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert all(extractor.fingerprint()["weights_sha256"] == digest for extractor in made)
    first, second = (extractor(pictures[:1])[0] for extractor in made)
    assert np.array_equal(first.features, second.features)


def test_a_folder_of_another_model_is_refused(folders):
    with pytest.raises(WeightsError, match="hidden is 32, not 768"):
        load_extractor("clip-vit-b32", weights=folders["clip"], device="cpu")
    with pytest.raises(UsageError, match="type 'vit', not of clip"):
        load_extractor("clip-vit-b32", weights=folders["vit"], device="cpu")


def test_what_shapes_do_not_show_is_compared_too(folders, tmp_path):
    preset = small("clip", folders, "clip-vit-b32")
    for name in ("model.safetensors", "config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folders["clip"] / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["num_attention_heads"] = 4
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="heads is 4, not 2$"):
        Extractor(preset, tmp_path, "cpu", "auto", DecodePolicy())


@pytest.mark.parametrize("kind", PAIRS)
def test_loading_is_strict(folders, kind, tmp_path):
    state = load_file(folders[kind] / "model.safetensors")
    gone = next(name for name in sorted(state) if "position_embedding" in name and "text" not in name)
    missing = {name: tensor for name, tensor in state.items() if name != gone}
    for content, words in (
        (missing, "missing .*position_embedding"),
        (state | {"extra.weight": state[gone].clone()}, "unknown"),
    ):
        save_file(content, str(tmp_path / "bad.safetensors"))
        with pytest.raises(WeightsError, match=words):
            load_extractor(f"{kind}:{folders[kind]}", weights=tmp_path / "bad.safetensors", device="cpu")


def test_an_imported_checkpoint_keeps_the_image_side_alone(folders, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))
    preset = small("clip", folders, "clip-vit-b32")
    with pytest.raises(InputNotFound, match="weights fetch clip-vit-b32"):
        Extractor(preset, None, "cpu", "auto", DecodePolicy())
    original = folders["clip"] / "model.safetensors"
    kept = import_weights(preset, original)
    assert kept == preset.weights_file and not any("text" in name for name in load_file(kept))
    installed = Extractor(preset, None, "cpu", "auto", DecodePolicy())
    given = Extractor(preset, original, "cpu", "auto", DecodePolicy())
    assert installed.weights_sha256 == given.weights_sha256
    assert np.array_equal(installed(pictures[:1])[0].features, given(pictures[:1])[0].features)


def test_a_repository_of_the_hub_is_read_by_its_name(folders, pictures, tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(repository, file):
        asked.append((repository, file))
        if not (folders["clip"] / file).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(file)
        return str(folders["clip"] / file)

    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    preset = get_preset("clip:somebody/small-clip")
    assert set(asked) == {("somebody/small-clip", "config.json"), ("somebody/small-clip", "preprocessor_config.json")}
    local = get_preset(f"clip:{folders['clip']}")
    assert (preset.architecture, preset.preprocess) == (local.architecture, local.preprocess)
    assert preset.urls[0] == "https://huggingface.co/somebody/small-clip/resolve/main/model.safetensors"
    import_weights(preset, folders["clip"] / "model.safetensors")
    regions = load_extractor("clip:somebody/small-clip", device="cpu")(pictures[:1])[0]
    assert np.array_equal(regions.features, load_extractor(local.name, device="cpu")(pictures[:1])[0].features)


def test_a_folder_is_the_same_model_from_everywhere(folders, monkeypatch):
    monkeypatch.chdir(folders["clip"].parent)
    assert get_preset(f"clip:{folders['clip'].name}") == get_preset(f"clip:{folders['clip']}")


def test_what_is_neither_a_folder_nor_within_reach_is_an_error(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(InputNotFound, match="somebody/nothing of the hub cannot be read"):
        get_preset("clip:somebody/nothing")
    with pytest.raises(InputNotFound, match="there is no folder"):
        get_preset(f"clip:{tmp_path}/gone")
    with pytest.raises(InputNotFound, match=r"no config\.json"):
        get_preset(f"clip:{tmp_path}")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        get_preset(f"clip:{tmp_path}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"do_rescale": False}, "do_rescale false"),
        ({"size": {"shortest_edge": 32}}, "does not make squares of 64"),
        ({"crop_size": 32}, "does not make squares of 64"),
        ({"rescale_factor": 0.1}, "does not make squares of 64"),
        ({"resample": 0}, "filter 0"),
        ({"size": "64"}, "make no sense"),
        ({"size": {"shortest_edge": 64}, "crop_size": {"width": 64}}, "make no sense"),
        ({"resample": [3]}, "make no sense"),
        ({"rescale_factor": None}, "make no sense"),
        ({"image_mean": 0.5}, "make no sense"),
        ({"image_mean": [0.5]}, "make no sense"),
        ({"image_std": [1, 1, 0]}, "make no sense"),
    ],
)
def test_other_preparations_are_refused(folders, tmp_path, settings, words):
    (tmp_path / "config.json").write_bytes((folders["clip"] / "config.json").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 64, "crop_size": 64} | settings))
    with pytest.raises(UsageError, match=words):
        get_preset(f"clip:{tmp_path}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("text", "vision_config is 'text'"),
        ({"hidden_act": ["gelu"]}, "hidden_act .* is no name"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps .* no number"),
        ({"patch_size": [16, 16]}, "patch_size .* positive whole number"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(tmp_path, settings, words):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", "vision_config": settings}))
    with pytest.raises(UsageError, match=words):
        get_preset(f"clip:{tmp_path}")


def test_settings_are_read_in_the_forms_they_have_had(folders, tmp_path):
    (tmp_path / "config.json").write_bytes((folders["clip"] / "config.json").read_bytes())
    expected = get_preset(f"clip:{folders['clip']}").preprocess
    old = {"size": 64, "crop_size": 64, "do_center_crop": True, "resample": 3}
    for name, content in [("preprocessor_config.json", old), ("processor_config.json", {"image_processor": old})]:
        (tmp_path / name).write_text(json.dumps(content))
        assert get_preset(f"clip:{tmp_path}").preprocess == expected
        (tmp_path / name).unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 70}, "crop_size": 64}))
    assert get_preset(f"clip:{tmp_path}").preprocess == replace(expected, short_side=70)


def test_the_published_models_have_the_sizes_that_their_names_say():
    shapes = {name: get_preset(name) for name in list_extractors() if get_preset(name).urls}
    found = {n: (p.selection.max_regions, p.dim, p.architecture.embedding) for n, p in shapes.items() if ":" not in n
             and hasattr(p.architecture, "embedding")}  # fmt: skip
    assert found == {
        "clip-vit-b32": (49, 768, 512),
        "clip-vit-b16": (196, 768, 512),
        "clip-vit-l14": (256, 1024, 768),
        "clip-vit-h14": (256, 1280, 1024),
        "vit-b16": (196, 768, 768),
        "vit-b16-in21k": (196, 768, 768),
        "vit-l16": (196, 1024, 1024),
        "vit-l16-in21k": (196, 1024, 1024),
        "siglip-b16": (196, 768, 768),
        "siglip-b16-multilingual": (256, 768, 768),
    }


def test_without_transformers_the_model_says_what_to_install(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match="pip install"):
        load_extractor(f"clip:{folders['clip']}", device="cpu")


def test_a_crop_smaller_than_what_is_cut_has_its_frame():
    rule = CentreCrop(short_side=80, side=64)
    to = frame(rule, 100, 300)
    assert (to.size, to.scale, to.origin) == ((64, 64), (240 / 300, 0.8), (88, 8))
