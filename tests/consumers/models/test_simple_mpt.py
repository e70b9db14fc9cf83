import json

import numpy as np
import pytest
import torch

import roivault
from cache import Regions, StoreMismatch, StoreWriter, UsageError, WeightsError, open_store
from consumers.models import load_model, patch_mt5
from consumers.models.data import ModelData, StoredPictures
from consumers.models.patch_mt5 import load_patch_mt5, patches_of
from consumers.models.simple_mpt import RECIPE
from consumers.models.writing import IGNORED, Words
from consumers.optimizer import optimizer_of, schedule_of
from consumers.recipes import Recipe
from consumers.tasks import Example, load_task
from consumers.training import Trainer

from ...conftest import write_examples

COLOURS = ("red", "blue", "green", "a dark grey")
WORDS = ["Answer in en : What color is it ?", "Answer in fr : fr", *COLOURS]


def patch_records(count=4, dim=16, patches=9, offset=0):
    rng = np.random.default_rng(3)
    y, x = np.divmod(np.arange(patches), 3)
    boxes = np.stack([x, y, x + 1, y + 1], 1).astype(np.float32) * 10
    return [
        Regions(str(n + offset), 30, 30, boxes, rng.standard_normal((patches, dim)).astype(np.float32))
        for n in range(count)
    ]


def examples():
    return [
        Example(str(n), "What color is it?", ((str(n),),), answer=colour, answers=(colour,))
        for n, colour in enumerate(COLOURS)
    ]


@pytest.fixture
def patches(tmp_path):
    with StoreWriter(tmp_path / "patches.roi", "float16") as writer:
        writer.write(patch_records())
    return open_store(tmp_path / "patches.roi")


@pytest.fixture
def mt5(tmp_path, save_mt5):
    return save_mt5(WORDS, tmp_path / "mt5")


def recipe(**changes):
    facts = dict(epochs=1000, scheduled=1000, most_updates=60, warmup_updates=10, clip=None, max_tokens=24)
    return Recipe(lr=0.03, batch=4, optimizer="adafactor", weight_decay=0.0, validate_every=20, **{**facts, **changes})


@pytest.mark.slow
def test_it_learns_answers_from_the_patches_of_a_store(tmp_path, mt5, patches):
    torch.manual_seed(0)
    model = load_model("simple-mpt", mt5)
    assert model.report.fresh == ("projection.weight", "projection.bias")
    data = ModelData(examples(), StoredPictures(patches), model, 24)
    trainer = Trainer(model, "gqa", model.objective(None), data, data, recipe(), tmp_path / "run")
    assert trainer.updates == 60
    progress = trainer.run()
    assert (progress.updates, progress.best) == (60, 100.0)
    best = load_model("simple-mpt", tmp_path / "run" / "best")
    assert not best.report.fresh
    again = ModelData(examples(), StoredPictures(patches), best, 24)
    assert best.answers(again.inputs(range(4), range(4)), None) == list(COLOURS)
    moved = ModelData(examples(), StoredPictures(patches), best, 24, shuffled=True)
    assert all(a != b for a, b in zip(best.answers(moved.inputs(range(4), range(4)), None), COLOURS, strict=True))


@pytest.mark.slow
def test_a_training_that_was_stopped_ends_as_one_that_was_not(tmp_path, mt5, patches):
    def train(folder, stop=lambda: False):
        torch.manual_seed(0)
        model = load_model("simple-mpt", mt5)
        data = ModelData(examples(), StoredPictures(patches), model, 24)
        trainer = Trainer(model, "gqa", model.objective(None), data, data, recipe(most_updates=6), folder)
        return trainer.run(stop).updates, model.state_dict()

    asked = iter([False, False, True])
    assert train(tmp_path / "stopped", lambda: next(asked))[0] == 3
    updates, continued = train(tmp_path / "stopped")
    assert updates == 6
    straight = train(tmp_path / "straight")[1]
    assert all(torch.equal(continued[name], tensor) for name, tensor in straight.items())


def test_a_vit_is_trained_with_it(tmp_path, save_mt5, save_vit):
    save_mt5(WORDS, tmp_path / "both" / "mt5")
    save_vit(tmp_path / "both" / "vision")
    model = load_model("simple-mpt-pixels", tmp_path / "both")
    before = {name: weights.clone() for name, weights in model.network.vision.named_parameters()}
    pictures = [np.full((20, 30, 3), shade, np.uint8) for shade in (0, 255)]
    batch = model.batch(examples()[:2], pictures, 24)
    assert batch[0].shape == (2, 3, 12, 12)
    optimizer = optimizer_of(model, recipe())
    model.objective(None).loss(model(*batch), batch[-1]).backward()
    optimizer.step()
    changed = [
        name for name, weights in model.network.vision.named_parameters() if not torch.equal(weights, before[name])
    ]
    assert any("patch_embeddings" in name for name in changed)
    model.save(tmp_path / "saved")
    again = load_model("simple-mpt-pixels", tmp_path / "saved")
    assert not again.report.fresh
    torch.testing.assert_close(again(*again.batch(examples()[:2], pictures, 24)), model.eval()(*batch))
    with pytest.raises(WeightsError, match="reads pixels with a ViT of its own"):
        load_patch_mt5(str(tmp_path / "saved"))


def test_patches_of_a_store_say_what_the_vit_says_of_the_pixels(tmp_path, save_mt5, save_vit):
    from extractor import load_extractor

    save_mt5(WORDS, tmp_path / "both" / "mt5")
    save_vit(tmp_path / "both" / "vision")
    pixels = load_model("simple-mpt-pixels", tmp_path / "both")
    stored = load_model("simple-mpt", tmp_path / "both" / "mt5")
    stored.network.fit(16)
    stored.network.projection.load_state_dict(pixels.network.projection.state_dict())
    pictures = [np.random.default_rng(n).integers(0, 256, (12, 12, 3), np.uint8) for n in range(2)]  # no resizing
    records = load_extractor(f"vit:{tmp_path / 'both' / 'vision'}", device="cpu")(pictures)
    batches = [model.batch(examples()[:2], seen, 24) for model, seen in ((pixels, pictures), (stored, records))]
    for one, other in zip(batches[0][2:], batches[1][2:], strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(stored(*batches[1]), pixels(*batches[0]), rtol=1e-3, atol=1e-3)
    black = pixels(*pixels.batch(examples()[:2], [np.zeros_like(one) for one in pictures], 24))
    assert (black - pixels(*batches[0])).abs().max() > 0.01


def test_patches_are_read_in_order_and_padding_is_not(mt5):
    torch.manual_seed(0)
    network = load_patch_mt5(str(mt5))
    network.fit(16)
    records = patch_records()
    seen, present = patches_of(records[:1])
    ids = torch.tensor([[3, 4, 5]])
    logits = network(seen, present, ids, torch.ones_like(ids), torch.tensor([[6, 1]]))
    few = [records[0], patch_records(patches=11)[0]]
    padded, there = patches_of(few)
    assert there.tolist() == [[False] * 2 + [True] * 9, [True] * 11]
    both = network(padded, there, ids.expand(2, -1), torch.ones(2, 3).long(), torch.tensor([[6, 1], [6, 1]]))
    torch.testing.assert_close(both[:1], logits)
    turned = network(seen.flip(1), present, ids, torch.ones_like(ids), torch.tensor([[6, 1]]))
    assert not torch.allclose(turned, logits)


def test_the_prompt_and_the_lengths_are_the_published_ones(mt5, patches):
    model = load_model("simple-mpt", mt5)
    model.network.fit(16)
    long = "What color is it? " * 20
    one = Example("1", long, (("0",),), answer="red blue green " * 9, answered_in="fr")
    _, _, ids, mask, target = model.batch([one], patches.get_many(["0"]), RECIPE.max_tokens)
    assert ids.shape == mask.shape == (1, 24) and target.shape == (1, 8)
    assert model.tokenizer.decode(ids[0]).startswith("Answer in fr : What color is it ?")
    assert ids[0, -1] == target[0, -1] == model.tokenizer.eos_token_id


def test_the_published_recipe(mt5):
    model = torch.nn.Linear(2, 2)
    optimizer = optimizer_of(model, RECIPE)
    schedule = schedule_of(optimizer, RECIPE, 10**6)
    assert isinstance(optimizer, torch.optim.Adafactor) and optimizer.defaults["beta2_decay"] == -0.8
    rates = {step: 1e-3 * schedule.lr_lambdas[0](step - 1) for step in (1, 500, 1000, 4000, 100_000)}
    assert rates == pytest.approx({1: 1e-6, 500: 5e-4, 1000: 1e-3, 4000: 5e-4, 100_000: 1e-4})
    assert (RECIPE.batch, RECIPE.most_updates, RECIPE.max_tokens) == (512, 100_000, 24)


def test_words_are_judged_up_to_the_end_of_each_text():
    words = Words(lambda examples: torch.tensor([[1, 2, IGNORED], [1, 2, 0]]))
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 2, 5], [1, 2, 5]]), 6).float()
    target = words.pairs(ModelDataStub(), [0, 1], np.random.default_rng(0)).target
    assert words.score(logits, target) == 1
    assert words.loss(logits, target) == pytest.approx(
        float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1)[[0, 1, 3, 4, 5]], target.flatten()[[0, 1, 3, 4, 5]])
        )
    )


class ModelDataStub:
    images = np.array([[4], [5]])
    examples = [None, None]


def test_other_patches_than_it_was_trained_with_are_refused(tmp_path, mt5, patches):
    model = load_model("simple-mpt", mt5)
    model.network.fit(16)
    model.save(tmp_path / "trained")
    other = patch_records(dim=8)
    with StoreWriter(tmp_path / "other.roi", "float16") as writer:
        writer.write(other)
    with pytest.raises(StoreMismatch, match="have 8 numbers, and these weights read 16"):
        ModelData(
            examples(),
            StoredPictures(open_store(tmp_path / "other.roi")),
            load_model("simple-mpt", tmp_path / "trained"),
            24,
        )
    with pytest.raises(StoreMismatch, match="has no patches"):
        patches_of([Regions("0", 9, 9, np.zeros((0, 4), np.float32), np.zeros((0, 8), np.float32))])


def test_tokenizers_that_do_not_fit_or_cannot_be_read_are_told(tmp_path, mt5, save_tokenizer, monkeypatch):
    save_tokenizer(["one two three four five six seven eight nine ten", *WORDS], tmp_path / "larger")
    with pytest.raises(UsageError, match="give the tokenizer that the mT5 was made with"):
        load_model("simple-mpt", mt5, tokenizer=tmp_path / "larger")
    for file in mt5.glob("tokenizer*"):
        file.unlink()
    (mt5 / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    (mt5 / "spiece.model").write_bytes(b"none")  # as mT5's tokenizer is published, but for its content
    monkeypatch.setattr(patch_mt5, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="is read with sentencepiece, which is not installed: pip install"):
        load_model("simple-mpt", mt5)


def run(capsys, *line):
    code = roivault.main([str(one) for one in line])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_it_is_trained_on_translations_and_tested_on_maxm_and_xgqa(tmp_path, save_mt5, capsys):
    annotations, store = tmp_path / "annotations", tmp_path / "patches.roi"
    for name in ("xgqa", "vqa2", "maxm"):
        write_examples(load_task(name, ".").examples, annotations)
    write_examples(load_task("xgqa", ".").examples, annotations)
    keys = [f"COCO_{part}_{n:012d}" for part, ids in (("train2014", (9, 25)), ("val2014", (42, 73))) for n in ids]
    keys += ["n161313", "n161314", "d89a4889331ce042", "0a1b2c3d4e5f6071"]
    with StoreWriter(store, "float16") as writer:
        records = patch_records(len(keys))
        writer.write([Regions(k, r.width, r.height, r.boxes, r.features) for k, r in zip(keys, records, strict=True)])
    init = save_mt5(["What is in picture 9 25 42 73 ? a dog un chien Que montre l ' image"], tmp_path / "mt5")
    model = ["--encoder", "simple-mpt", "--store", store, "--annotations", annotations, "--json", "--quiet"]
    small = ["--batch", 3, "--most-updates", 4, "--warmup-updates", 2, "--out", tmp_path / "runs", "--init", init]
    for task, said in (("maxm", {"a dog", "un chien"}), ("xgqa", {"a dog"})):
        line = ["--task", task, "--train-on", "vqa2", "--language", "en,fr"]
        code, found, err = run(capsys, "finetune", *model, *line, *small)
        assert code == 0, err
        row = found["runs"][0]
        assert row["result"]["updates"] == 4 and row["status"] == "done"
        assert {one.answer for one in trained_on(annotations, task)} == said
        for language in ("en", "fr") if task == "maxm" else ("en", "de"):
            test = ["--task", task, "--language", language, "--checkpoint", row["result"]["weights"]]
            code, rows, err = run(capsys, "evaluate", *model, *test, "--out", tmp_path / "results")
            assert code == 0, err
            assert rows[0]["result"]["n"] == 3 and ("cider" in rows[0]["result"]) == (task == "maxm")
    code, _, err = run(capsys, "evaluate", *model, "--task", "maxm", "--checkpoint", init, "--out", tmp_path / "r2")
    assert code == 65 and "fine-tuned" in json.loads((tmp_path / "r2" / "results.jsonl").read_text())["error"]


def trained_on(annotations, task):
    from consumers.tasks import Selection

    known = load_task(task, annotations, train_on="vqa2")
    return [one for language in ("en", "fr") for one in known.load(Selection("train", language))]
