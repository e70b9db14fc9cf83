"""Retrieval by embeddings of pictures that a store holds, and of texts."""

import io
import json

import numpy as np
import pytest
import torch

import roivault
from cache import Regions, StoreWriter, open_store
from consumers.report_runs import read_runs
from consumers.tasks import Selection, load_task

from ...conftest import write_examples

LANGUAGES = ("en", "de", "th")


@pytest.fixture
def task(tmp_path):
    made = load_task("xm3600", tmp_path)
    write_examples(made.examples, tmp_path)
    return made


@pytest.fixture
def embedded(task, tmp_path):
    """A store of embeddings of the pictures."""
    keys = sorted({one.images[0][0] for one in task.load(Selection("test"))})
    rng = np.random.default_rng(2)
    with StoreWriter(tmp_path / "pictures.roi", "float32") as writer:
        for key in keys:
            vector = rng.standard_normal(16).astype(np.float32)
            patches = rng.random((2, 5), np.float32)
            writer.write([Regions(key, 9, 9, np.zeros((2, 4), np.float32), patches, global_features=vector)])
    return tmp_path / "pictures.roi"


@pytest.fixture
def evaluate(task, embedded, tmp_path, capsys):
    def run(encoder, *more, code=0):
        line = ["evaluate", "--encoder", encoder, "--task", "xm3600", "--annotations", task.annotations]
        line += ["--store", embedded, "--out", tmp_path / "out", "--device", "cpu", "--json", "--quiet", *more]
        assert roivault.main([str(part) for part in line]) == code
        said = capsys.readouterr()
        return json.loads(said.out) if not code else said.out + said.err

    return run


@pytest.fixture
def texts(task, embedded, tmp_path):
    """A file of texts that are embedded where their pictures are, but for one in English."""
    store, rng = open_store(embedded), np.random.default_rng(3)
    ids, rows = [], []
    for language in LANGUAGES:
        for one in task.load(Selection("test", language)):
            ids.append(f"{language}/{one.id}")
            rows.append(5 * store[one.images[0][0]].global_features + 0.1 * rng.standard_normal(16))
    rows[1] = -rows[1]
    np.savez(tmp_path / "texts.npz", ids=np.array(ids), embeddings=np.array(rows, np.float32))
    return tmp_path / "texts.npz"


def test_embeddings_of_a_file_find_pictures_and_captions(evaluate, texts):
    for language, captions, found in (("en", 4, 75.0), ("de", 4, 100.0), ("th", 3, 100.0)):
        (row,) = evaluate("embeddings", "--checkpoint", texts, "--language", language)
        result = row["result"]
        assert (result["n"], result["images"]) == (captions, 3)
        assert (result["ir_r1"], result["tr_r1"]) == (found, 100.0)  # any caption of a picture counts


def test_fewer_candidates_are_asked_for_and_told(evaluate, texts, tmp_path):
    (row,) = evaluate("embeddings", "--checkpoint", texts, "--candidates", 2)
    assert (row["result"]["images"], row["result"]["n"], row["result"]["candidates"]) == (2, 2, "2")
    assert "2 pictures at most" in row["result"]["notes"][0]
    (whole,) = evaluate("embeddings", "--checkpoint", texts, "--candidates", "full")
    assert whole["result"]["images"] == 3 and not whole["result"]["notes"]
    models = {run.model for run in read_runs([str(tmp_path / "out")]).runs}
    assert models == {"embeddings", "embeddings (2 candidates)"}, "a report keeps them apart"
    assert "--candidates" in evaluate("embeddings", "--checkpoint", texts, "--candidates", "few", code=2)


def save_text_side(kind, folder, captions):
    import transformers as hf

    torch.manual_seed(4)
    words = sorted({word for text in captions for word in text.lower().split()})
    (folder / "vocab.txt").parent.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    hf.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    size = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
    size |= {"max_position_embeddings": 20, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    if kind == "clip":
        hf.CLIPTextModelWithProjection(hf.CLIPTextConfig(**size, projection_dim=16)).save_pretrained(folder)
    else:
        hf.SiglipTextModel(hf.SiglipTextConfig(**size)).save_pretrained(folder)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_texts_go_through_the_text_side_of_a_model(evaluate, task, embedded, tmp_path, kind):
    import transformers as hf

    examples = task.load(Selection("test"))
    folder = tmp_path / kind
    save_text_side(kind, folder, [one.text for one in examples])
    (row,) = evaluate(f"{kind}-retrieval", "--checkpoint", folder)
    assert row["result"]["n"] == 4
    scores = np.load(next((tmp_path / "out").glob("*_scores.npy")))
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    store = open_store(embedded)
    pictures = np.stack([store[key].global_features for key in dict.fromkeys(one.images[0][0] for one in examples)])
    for place, one in enumerate(examples):
        if kind == "clip":
            ids = tokenizer(one.text, return_tensors="pt")
            model = hf.CLIPTextModelWithProjection.from_pretrained(folder).eval()
            vector = model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).text_embeds
        else:
            ids = tokenizer(one.text, return_tensors="pt", padding="max_length", max_length=20, truncation=True)
            vector = hf.SiglipTextModel.from_pretrained(folder).eval()(input_ids=ids["input_ids"]).pooler_output
        vector = vector[0].detach().numpy()
        cosines = pictures @ vector / np.linalg.norm(pictures, axis=1) / np.linalg.norm(vector)
        np.testing.assert_allclose(scores[place], cosines, atol=1e-5)


def _damaged():
    """An archive whose compressed bytes are no longer what was compressed."""
    whole = io.BytesIO()
    np.savez_compressed(whole, ids=np.array([f"en/{n}" for n in range(99)]), embeddings=np.zeros((99, 16), np.float32))
    place = whole.getvalue().index(b"ids.npy") + len(b"ids.npy") + 20  # behind the extra field of zip64
    return whole.getvalue()[:place] + b"\xff" * 16 + whole.getvalue()[place + 16 :]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 66, "does not exist"),
        ({"ids": np.array(["en/x"]), "embeddings": np.zeros((1, 16), np.float32)}, 65, "no embedding of 4 texts"),
        ({"ids": np.array(["en/x"]), "embeddings": np.zeros((1, 7), np.float32)}, 78, "numbers, but"),
        ({"ids": np.array(["en/x"]), "embeddings": np.full((1, 16), np.nan, np.float32)}, 65, "not finite"),
        ({"ids": np.array(["a", "a"]), "embeddings": np.zeros((2, 16), np.float32)}, 65, "has ids"),
        ({"texts": np.zeros(3)}, 65, "no .npz file with ids"),
        (b"PK\x03\x04 but no archive", 65, "no .npz file"),
        (_damaged(), 65, "no .npz file"),
    ],
)
def test_files_that_do_not_fit_are_told(evaluate, tmp_path, content, code, words):
    path = tmp_path / "texts.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    said = evaluate("embeddings", "--checkpoint", path, code=code)
    assert words in said
