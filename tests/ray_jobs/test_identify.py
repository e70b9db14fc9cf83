import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cache import InputNotFound, StoreWriter, UsageError, WeightsError
from cache.contents import StoreContents
from extractor import DecodePolicy, Extractor, get_preset
from ray_jobs import identify as module
from ray_jobs.identify import find_images, identify
from ray_jobs.identify_command import register
from ray_jobs.variations import selections, variations
from tests.cache.images import WORDS, image, pick, shaken
from tests.extractor.shrunken import save_weights, shrunken

DIM = get_preset("demo").dim


def records(count=20, dim=DIM, key="{0:04d}.png", change=lambda r: r):
    """What the fake model makes of the pictures of `photos`."""
    return [change(image(i, d=dim, key=key.format(i))) for i in range(count)]


class Fake:
    """An extractor that knows the pictures by their names, and sees colours swapped, or sizes, as its preset says."""

    classes, attributes = WORDS["classes"], WORDS["attributes"]
    _network = None

    def __init__(self, name, weights, device):
        self.preset, self.policy = replace(get_preset("demo"), name=name), DecodePolicy()

    def fingerprint(self):
        return {"weights_sha256": "0", **self.preset.choices()}

    def __call__(self, images, boxes, keys, on_error):
        rule, plain = self.preset.preprocess, get_preset("demo").preprocess
        made = image(int(keys[0].split("/")[-1].split(".")[0]), d=DIM, key=keys[0])
        if rule.channels != plain.channels:
            made = recoloured(made)
        if (rule.short_side, rule.resize) != (plain.short_side, plain.resize):
            made = shaken(made, 0.3, seed=rule.short_side + len(rule.resize))
        if self.preset.selection != get_preset("demo").selection:
            made = pick(made, slice(0, 7))
        if boxes is not None:
            made = shaken(made, 0.3, seed=3).replace(boxes=boxes[0])
        return [made]


def recoloured(regions):
    ids = np.array([1, 0, 2, 3, 1, 5, 6, 7])[regions.attr_ids].astype(np.int32)
    return shaken(regions, 0.3).replace(attr_ids=ids)


@pytest.fixture
def store(tmp_path):
    def write(rows, dtype="float16"):
        with StoreWriter(tmp_path / "s.roi", dtype, vocabularies=WORDS) as writer:
            writer.write(rows)
        return StoreContents(tmp_path / "s.roi")

    return write


def test_the_model_that_made_it(store, photos):
    found = identify(store(records()), str(photos(20)), "demo", load=Fake)
    assert found.best.verdict == "yes" and found.best.names == {"dtype"} and found.decided
    assert len(found.trials) == 1 and len(found.compared) == 8 and found.found == 20
    json.dumps(found.to_dict())


def test_ids_after_background_are_another_notation(store, photos):
    rows = records(change=lambda r: r.replace(class_ids=r.class_ids + 1))
    found = identify(store(rows), str(photos(20)), "demo", load=Fake)
    assert found.best.made_it and found.best.verdict == "yes, written otherwise"
    assert "class_offset" in found.best.names


def test_a_setting_that_was_other_is_found_by_trying(store, photos):
    found = identify(store(records(change=recoloured)), str(photos(20)), "demo", load=Fake)
    assert found.best.made_it and found.best.change == "red and blue swapped"
    plain = next(trial for trial in found.trials if not trial.change)
    assert plain.verdict == "no" and "channel_order" in plain.names
    assert found.to_dict()["made_by"] == "demo" and found.to_dict()["change"] == "red and blue swapped"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: shaken(r, 0.3, seed=600 + len("pillow")), "images resized to 600/1000"),
        (lambda r: shaken(r, 0.3, seed=256 + len("opencv")), "images resized as opencv does"),
    ],
)
def test_other_resize_rules_are_tried(store, photos, change, expected):
    found = identify(store(records(change=change)), str(photos(20)), "demo", load=Fake)
    assert found.best.made_it and found.best.change == expected


@pytest.mark.parametrize("name", ["vg-r101", "bua-d2-r101"])
def test_selections_are_tried_first_where_one_was_seen(name):
    extractor = SimpleNamespace(preset=get_preset(name), policy=DecodePolicy(), _network=None)
    first, last = ([text for text, _, _ in variations(extractor, {cause})] for cause in ("selection", "unknown"))
    selected = [text for text in first if text.startswith("regions selected as by ")]
    assert len(selected) >= 8 and first[: len(selected)] == selected == last[-len(selected) :]
    assert sorted(first) == sorted(last) and len(set(first)) == len(first)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("vinvl-x152-filter2", ["vinvl-x152", "vinvl-x152-filter0"]),
        ("bua-r101-10-100", ["bua-r101-36"]),
        ("vg-r101-adaptive", ["vg-r101", "frcnn-vg-hf"]),
    ],
)
def test_selections_of_the_same_network_are_tried_first(name, own):
    """Those of other systems may keep the same regions: then the cache would be said to be like none there is."""
    extractor = SimpleNamespace(preset=get_preset(name))
    first = [text.removeprefix("regions selected as by ") for text, _, _ in selections(extractor)][: len(own)]
    assert first == own


def test_a_known_fault_is_tried_first(tmp_path):
    preset = shrunken(get_preset("bua-r101-10-100"))
    extractor = Extractor(preset, save_weights(preset, tmp_path), "cpu", "float32", DecodePolicy())
    change, faulty, own_boxes = next(variations(extractor, set()))
    assert "anchors of a current detectron2" in change and not own_boxes
    picture = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    (right,), (wrong,), (again,) = (one([picture]) for one in (extractor, faulty, extractor))
    assert np.array_equal(right.boxes, again.boxes) and not np.isin(wrong.boxes[:, 0], right.boxes[:, 0]).all()


SELECTIONS = """
from types import SimpleNamespace
import torch
from extractor import get_preset, list_extractors
from extractor.detections import Detections
from extractor.networks import network_class
from extractor.preprocess import Frame
from extractor.selection import select
from ray_jobs.variations import selections

rois = torch.rand(30, 4, generator=torch.Generator().manual_seed(0)) * 100
rois[:, 2:] += rois[:, :2]
scores = torch.linspace(0, 0.5, 60).reshape(30, 2)
found = Detections(rois, rois, rois, *scores.max(1)[::-1], class_scores=scores)
for name in ("vg-x101", "vg-r101", "bua-r101-36", "vinvl-x152"):  # the modules of the first two know no other rules
    preset = get_preset(name)
    network_class(preset.architecture)
    kinds = set()
    for _, other, _ in selections(SimpleNamespace(preset=preset)):
        rule = other.preset.selection
        assert select.dispatch(type(rule)) is select.registry[type(rule)], (name, rule)
        assert len(select(rule, found, Frame(200, 200, (250, 250), (1.25, 1.25))).rows), (name, rule)
        kinds.add(type(rule).__name__)
    print(name, *sorted(kinds))
"""


def test_selections_that_are_tried_need_nothing_that_a_network_lacks():
    """In a process of its own: the rules of other models lie in modules that nothing else has loaded there."""
    run = subprocess.run([sys.executable, "-c", SELECTIONS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    kinds = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}
    every = ["CaffeNMS", "MaxClassNMS", "PerClassNMS", "VinVLFilter"]
    assert kinds == {name: every for name in ("vg-x101", "vg-r101", "bua-r101-36", "vinvl-x152")}


def test_other_weights_end_the_matter(store, photos):
    rows = [image(i, d=DIM, weights=5, key=f"{i:04d}.png") for i in range(20)]
    found = identify(store(rows), str(photos(20)), "demo", load=Fake)
    assert [trial.verdict for trial in found.trials] == ["no"] and "other_weights" in found.best.names
    assert found.decided and found.to_dict()["made_by"] is None


def test_without_a_model_every_installed_one_is_tried(store, photos):
    found = identify(store(records()), str(photos(20)), load=Fake)
    assert found.best.model == "demo" and found.best.made_it
    assert {trial.model for trial in found.trials} | set(found.skipped) <= set(module.list_extractors())


def test_a_model_that_cannot_be_loaded_is_skipped(store, photos):
    def load(name, weights, device):
        raise WeightsError(f"the weights of {name} are damaged")

    cache = store(records())
    found = identify(cache, str(photos(20)), load=load)
    assert not found.trials and not found.decided
    assert found.skipped["demo"] == "it cannot be loaded: the weights of demo are damaged"
    with pytest.raises(WeightsError, match="of demo are damaged"):
        identify(cache, str(photos(20)), "demo", load=load)


def test_other_dimensions_decide_without_extracting(tmp_path, photos):
    with StoreWriter(tmp_path / "d.roi", "float32") as writer:
        writer.write(records(dim=64))
    found = identify(StoreContents(tmp_path / "d.roi"), str(photos(20)), "demo", load=None)
    assert not found.trials and found.decided and "numbers" in found.skipped["demo"]


def test_without_weights_the_records_tell_the_family(tmp_path, photos, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path / "home"))
    words = {"classes": [f"thing {i}" for i in range(1594)]}
    with StoreWriter(tmp_path / "v.roi", "float16", vocabularies=words) as writer:
        writer.write(records(6, 2048))
    found = identify(StoreContents(tmp_path / "v.roi"), str(photos(6)), load=None)
    assert not found.trials and not found.decided and found.to_dict()["made_by"] is None
    assert "vinvl" in found.hints[0] and "1,594 classes by name" in found.to_dict()["hints"]
    assert "roivault weights fetch vinvl-x152" in found.skipped["vinvl-x152"]


@pytest.mark.parametrize("key", ["{0:04d}", "a/b/{0:04d}.jpg", "{0}"])
def test_images_are_found_under_other_keys(store, photos, key):
    cache = store(records(key=key))
    assert len(find_images(cache, str(photos(20)))) == 20


def test_a_few_images_of_many_are_enough(store, photos):
    cache = store(records(20, key="{0:04d}"))
    found = identify(cache, str(photos(2)), "demo", load=Fake)
    assert found.found == 2 and sorted(found.compared) == ["0000", "0001"] and found.best.verdict == "yes"


def test_images_that_are_not_there_or_cannot_be_read(store, photos, picture, tmp_path):
    cache = store(records())
    picture(tmp_path / "other" / "cat.png")
    with pytest.raises(InputNotFound, match="under no key rule"):
        identify(cache, str(tmp_path / "other"), "demo", load=Fake)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputNotFound, match="no images in .*empty"):
        identify(cache, str(tmp_path / "empty"), "demo", load=Fake)
    folder = photos(20)
    for path in folder.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(InputNotFound, match="could be used"):
        identify(cache, str(folder), "demo", load=Fake)


def test_usage(store, photos, tmp_path):
    cache = store(records())
    with pytest.raises(UsageError, match="--model"):
        identify(cache, str(photos(20)), weights="w")
    with pytest.raises(UsageError, match="device 'xpu'"):
        identify(cache, str(photos(20)), device="xpu")
    with pytest.raises(UsageError, match="no model"):
        identify(cache, str(photos(20)), "dem0")
    app = typer.Typer()
    register(app)
    (tmp_path / "x.tsv").write_text("1\t2\n")
    result = CliRunner().invoke(app, [str(tmp_path / "x.tsv"), "--images", str(photos(20))])
    assert isinstance(result.exception, UsageError)


@pytest.mark.slow
def test_demo_recognises_its_own_records_and_what_was_changed(tmp_path):
    from extractor import load_extractor
    from extractor.scenes import write_scenes

    write_scenes(tmp_path / "scenes", 8, 3)
    paths = sorted((tmp_path / "scenes").glob("*.jpg"))
    demo = load_extractor("demo", device="cpu")
    swapped = load_extractor("demo", device="cpu")
    swapped.preset = replace(demo.preset, preprocess=replace(demo.preset.preprocess, channels="rgb"))
    for name, model, change in (("own", demo, ""), ("swapped", swapped, "red and blue swapped")):
        with StoreWriter(tmp_path / f"{name}.roi", vocabularies=demo.vocabularies()) as writer:
            writer.write(model(paths, keys=[path.name for path in paths]))
        found = identify(StoreContents(tmp_path / f"{name}.roi"), str(tmp_path / "scenes"), "demo", device="cpu")
        assert found.best.made_it and found.best.change == change
