"""Every model beside the encoders through the command line: pictures into a store by its extractor, then answers.

Nothing is downloaded: weights are random and shrunken, in the layouts that they are published in.
"""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import roivault
from cache.tensor_files import INDEX
from consumers.models import MODELS, model_class
from consumers.models.negation import negated
from consumers.tasks import Selection, load_task
from consumers.tasks.vsr import EXAMPLES

from ...conftest import write_examples
from .small_vsr import WIDTHS, save_model
from .small_writers import save_blip2, save_paligemma, save_siglip

DEMO_DIM = 384
OF_A_DETECTOR = ("visualbert-vsr", "lxmert-vsr")  # which takes its time
TASKS = {
    "visualbert-vsr": "vsr", "lxmert-vsr": "vsr", "vilt": "vsr", "clip-negation": "vsr",
    "clip-retrieval": "xm3600", "siglip-retrieval": "xm3600", "embeddings": "xm3600",
    "mt5-captions": "xm3600-captions", "simple-mpt": "maxm", "simple-mpt-pixels": "maxm", "blip2": "maxm",
    "paligemma": "maxm",
}  # fmt: skip


def draw(folder, examples):
    """Their pictures in a folder, which it returns."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for key in sorted({forms[0] for one in examples for forms in one.images}):
        pixels = np.kron(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8), np.ones((9, 9, 1), np.uint8))
        Image.fromarray(pixels).save(folder / f"{key}.jpg")
    return folder


def run(capsys, *line, on_device=True):
    capsys.readouterr()
    line = [*line, *(["--device", "cpu", "--quiet"] if on_device else []), "--json"]
    code = roivault.main([str(part) for part in line])
    said = capsys.readouterr()
    assert code == 0, said.err + said.out
    return json.loads(said.out)


@pytest.fixture
def make(tmp_path, save_tokenizer, save_mt5, save_vit, monkeypatch):
    """Name, texts -> its weights, and the extractor of what it reads; None of models that read pixels."""
    folder = tmp_path / "weights"

    def build(name, texts):
        if name in OF_A_DETECTOR:
            monkeypatch.setitem(WIDTHS, name, DEMO_DIM)
            return save_model(name, folder, texts), "demo"
        if name in ("vilt", "clip-negation"):
            return save_model(name, folder, texts), None if name == "vilt" else f"clip:{folder}"
        if name in ("clip-retrieval", "embeddings"):
            return save_model("clip-negation", folder, texts), f"clip:{folder}"
        if name == "siglip-retrieval":
            save_siglip(folder, save_tokenizer(texts, folder))
            return folder, f"siglip:{folder}"
        if name in ("blip2", "paligemma"):
            save_blip2(folder, save_tokenizer, "t5") if name == "blip2" else save_paligemma(folder, save_tokenizer)
            return folder, f"{name}:{folder}"
        save_mt5([*texts, "Answer Caption in en :"], folder / "mt5")
        save_vit(folder / "vision")
        return (folder, None) if model_class(name).reads == "images" else (folder / "mt5", f"vit:{folder / 'vision'}")

    return build


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in OF_A_DETECTOR else ()) for name in MODELS]
)
def test_pictures_are_extracted_and_it_answers(name, make, tmp_path, capsys):
    task_name, annotations = TASKS[name], tmp_path / "annotations"
    trained = model_class(name).recipe is not None
    on = {"maxm": "vqa2"}.get(task_name) if trained else None
    for one in {task_name, on} - {None}:
        write_examples(load_task(one, ".").examples, annotations)
    task = load_task(task_name, annotations, **({"train_on": on} if on else {}))
    splits = ("train", "dev", "test") if trained else ("test",)
    examples = [one for split in splits for one in task.load(Selection(split))]
    texts = [text for e in examples for text in (e.text, e.answer or "")]
    if task_name == "vsr":
        texts += [negated(record["caption"], record["relation"]) for record in EXAMPLES]
    weights, extractor = make(name, texts)

    images = draw(tmp_path / "images", examples)
    reads = ["--images", images]
    if extractor:
        store = tmp_path / "pictures.roi"
        run(capsys, "extract", images, "-o", store, "--model", extractor, "--threads", 1)
        reads = ["--store", store]

    line = ["--encoder", name, "--task", task_name, "--annotations", annotations, *reads]
    line += ["--train-on", on] if on else []
    if trained:
        small = ["--init", weights, "--out", tmp_path / "runs", "--batch", 2]
        small += ["--most-updates", 2, "--warmup-updates", 1]
        small += ["--accumulate", 1] if task_name == "xm3600-captions" else []
        (row,) = run(capsys, "finetune", *line, *small)["runs"]
        assert row["status"] == "done" and row["result"]["updates"] == 2
        weights = row["result"]["weights"]
    if name == "embeddings":
        weights = tmp_path / "texts.npz"
        rows = task.load(Selection("test"))
        ids = np.array([f"en/{one.id}" for one in rows])
        embeddings = np.random.default_rng(1).standard_normal((len(rows), WIDTHS["clip-negation"]))
        np.savez(weights, ids=ids, embeddings=embeddings.astype(np.float32))
    (row,) = run(capsys, "evaluate", *line, "--checkpoint", weights, "--out", tmp_path / "results")
    result = row["result"]
    said = json.loads((tmp_path / "results" / result["predictions"]).read_text())
    assert result["n"] == len(said) == len(task.load(Selection("test")))
    assert 0 <= result["ir_r1" if task.metric == "recall" else task.metric] <= 1000


def test_each_is_tested():
    assert set(TASKS) == set(MODELS)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder -> its files as those of somebody/small, as huggingface_hub keeps them; there is no network."""
    from huggingface_hub import constants

    def keep(folder):
        commit = "0123456789" * 4
        place = tmp_path / "hub" / "models--somebody--small"
        shutil.copytree(folder, place / "snapshots" / commit)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(commit)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        return "somebody/small"

    return keep


@pytest.mark.parametrize("name", ["blip2", "siglip-retrieval"])
def test_a_hub_id_is_extracted_and_loaded_as_its_folder_is(name, make, hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path / "home"))
    task = load_task(TASKS[name], tmp_path / "annotations")
    write_examples(task.examples, task.annotations)
    examples = task.load(Selection("test"))
    folder, extractor = make(name, [one.text for one in examples])
    place, kind = hub(folder), extractor.partition(":")[0]
    checkpoint = INDEX if (folder / INDEX).is_file() else "model.safetensors"
    run(capsys, "weights", "import", f"{kind}:{place}", folder / checkpoint, on_device=False)
    images = draw(tmp_path / "images", examples)
    said = []
    for source, checkpoint in ((f"{kind}:{place}", place), (extractor, folder)):
        store = tmp_path / f"{len(said)}.roi"
        run(capsys, "extract", images, "-o", store, "--model", source, "--dtype", "float32", "--threads", 1)
        line = ["--encoder", name, "--task", task.name, "--annotations", task.annotations, "--store", store]
        (row,) = run(capsys, "evaluate", *line, "--checkpoint", checkpoint, "--out", tmp_path / f"out{len(said)}")
        assert row["result"]["notes"] == []
        said.append(json.loads((tmp_path / f"out{len(said)}" / row["result"]["predictions"]).read_text()))
    assert said[0] == said[1] and said[0]
