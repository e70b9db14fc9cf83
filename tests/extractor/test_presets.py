import subprocess
import sys

import pytest

from cache import UsageError
from extractor.presets import PRESETS, get_preset, list_extractors


@pytest.mark.parametrize("name", list_extractors())
def test_every_preset_is_complete(name):
    preset = get_preset(name)
    assert preset.name == name and preset.summary and preset.training_data and preset.revision >= 1
    assert preset.dim > 0
    assert len(preset.classes) == preset.architecture.num_classes == len(set(preset.classes))
    assert len(preset.attributes) == preset.architecture.num_attributes == len(set(preset.attributes))
    assert all(isinstance(value, (str, int, float)) for value in preset.choices().values())


def test_two_presets_never_look_alike():
    choices = [tuple(sorted((k, str(v)) for k, v in p.choices().items())) for p in PRESETS.values()]
    assert len(set(choices)) == len(choices)


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(UsageError, match="demo"):
        get_preset("demmo")


def test_listing_the_models_loads_no_torch():
    code = "import sys, extractor as e; [e.get_preset(n).dim for n in e.list_extractors()]; "
    code += "print([m for m in ('torch', 'cv2', 'PIL') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_ids_stand_for_the_published_names():
    classes, attributes = get_preset("vg-r101").classes, get_preset("vg-r101").attributes
    for name, place in {"yolk": 0, "man": 50, "sky": 72, "dog": 117, "tree": 291, "buoy": 1599}.items():
        assert classes[place] == name
    for name, place in {"gray": 0, "red": 4, "white": 7, "leaning": 399}.items():
        assert attributes[place] == name
    assert get_preset("vg-x101").classes == classes and get_preset("vg-x101").attributes == ()
    assert [get_preset("vsr-visualbert").classes[i] for i in (0, 16, 79)] == ["person", "dog", "toothbrush"]
