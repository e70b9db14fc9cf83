import json

import numpy as np
import pytest
import torch

import roivault
from cache import InputNotFound, UsageError
from consumers.models import load_model
from consumers.models.data import ModelData
from consumers.models.images import FolderOfImages
from consumers.tasks import Example, load_task

from ...conftest import write_examples
from .small_writers import save_blip2, save_paligemma

QUESTIONS = ("What color is it ?", "Is it a red bus on a green road ?")


@pytest.fixture
def pictures(tmp_path):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for name, shade in (("a", 0), ("b", 255)):
        Image.fromarray(np.full((20, 30, 3), shade, np.uint8)).save(tmp_path / "pictures" / f"{name}.png")
    return FolderOfImages(tmp_path / "pictures")


EXAMPLES = [
    Example(str(n), text, ((name,),), answer="yes", answers=("yes",), answered_in="fr")
    for n, (text, name) in enumerate((text, name) for text in QUESTIONS for name in "ab")
]


@pytest.mark.parametrize("name, text", [("blip2", "t5"), ("blip2", "opt"), ("paligemma", "")])
def test_it_writes_answers_whatever_else_is_in_the_batch(tmp_path, save_tokenizer, pictures, name, text):
    folder = tmp_path / "model"
    save_blip2(folder, save_tokenizer, text) if name == "blip2" else save_paligemma(folder, save_tokenizer)
    model = load_model(name, folder)
    assert not model.report.fresh
    data = ModelData(EXAMPLES, pictures, model, 40)
    with torch.inference_mode():
        together = model.answers(data.inputs(range(4), data.images[:, 0].tolist()), None)
        alone = [model.answers(data.inputs([n], data.images[n].tolist()), None)[0] for n in range(4)]
    assert together == alone and all(isinstance(one, str) for one in together)
    assert all(together) and not any("What color is it" in one for one in together)
    ids = data.inputs([0], [0])[1]
    said = model.processor.batch_decode(ids, skip_special_tokens=True)[0]
    asked = {"blip2": f"Question : {QUESTIONS[0]} Short answer :", "paligemma": f"answer fr {QUESTIONS[0]}"}
    assert said.strip() == asked[name]
    model.save(tmp_path / "saved")
    with torch.inference_mode():
        again = load_model(name, tmp_path / "saved")
        assert again.answers(data.inputs(range(4), data.images[:, 0].tolist()), None) == together


def test_it_is_tested_as_it_is_and_translated_and_laid_beside_published_scores(tmp_path, save_tokenizer, capsys):
    from PIL import Image

    save_blip2(tmp_path / "model", save_tokenizer, "t5")
    write_examples(load_task("maxm", ".").examples, tmp_path / "annotations")
    (tmp_path / "images").mkdir()
    for name in ("d89a4889331ce042", "0a1b2c3d4e5f6071"):
        Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "images" / f"{name}.jpg")
    line = ["evaluate", "--encoder", "blip2", "--checkpoint", tmp_path / "model", "--task", "maxm", "--language", "fr"]
    line += ["--images", tmp_path / "images", "--annotations", tmp_path / "annotations", "--out", tmp_path / "runs"]
    line += ["--json", "--quiet"]
    said = []
    for more in ([], ["--setup", "translate-test", "--translate", f"{__name__}:backwards"]):
        assert roivault.main([str(one) for one in [*line, *more]]) == 0
        result = json.loads(capsys.readouterr().out)[0]["result"]
        said.append(json.loads((tmp_path / "runs" / result["predictions"]).read_text()))
        assert result["n"] == len(said[-1]) == 3 and result["notes"] == []
        assert ("prefix" in result["subsets"]) == bool(more)
    assert all(one["prediction"].startswith("en fr ") for one in said[1])
    assert roivault.main(["report", str(tmp_path / "runs"), "--json"]) == 0
    tables = {table["table"]: table["cells"] for table in json.loads(capsys.readouterr().out)["tables"]}
    for table, setup, published in (("MaXM 5", "translate-test", 20.1), ("MaXM 8", "zero-shot", 9.2)):
        cell = {"model": "blip2", "setup": setup, "language": "fr", "metric": "accuracy"}
        (found,) = [one for one in tables[table] if cell.items() <= one.items()]
        assert found["published"] == published and found["measured"] is not None


def backwards(texts, source, target):
    return [f"{source} {target} {text[::-1]}" for text in texts]


def test_models_that_cannot_be_had_say_why(tmp_path):
    with pytest.raises(UsageError, match="transformers has no OFA"):
        load_model("ofa")
    with pytest.raises(UsageError, match="its weights were never published.*paligemma"):
        load_model("pali")
    with pytest.raises(InputNotFound, match="no Blip2ForConditionalGeneration"):
        load_model("blip2", tmp_path)


def test_transformers_still_has_no_ofa():
    import transformers

    assert not [name for name in dir(transformers) if name.lower().startswith("ofa")], "run it, then"
