"""The models of VSR on shrunken weights: what they compute, read and keep."""

import numpy as np
import pytest
import torch

from cache import DataError, InputNotFound, Regions, StoreMismatch, UsageError, WeightsError
from consumers.encoders.checkpoint import LoadReport
from consumers.models import list_models, load_model, model_class
from consumers.models.negation import ANTONYMS, negated
from consumers.tasks import load_task
from consumers.tasks.vsr import EXAMPLES
from tests.consumers.models.small_vsr import WIDTHS, picture, save_model

NAMES = ("visualbert-vsr", "lxmert-vsr", "vilt", "clip-negation")
TASK = load_task("vsr", ".")
ROWS = [TASK.example(str(n), record) for n, record in enumerate(EXAMPLES)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    texts = [text for one in ROWS for text in (one.text, negated(one.text, one.facts["relation"]))]
    return {name: save_model(name, root / name, texts) for name in NAMES}


def pictures_of(name, count, regions=5):
    rng = np.random.default_rng(1)
    if name == "vilt":
        return [rng.integers(0, 256, (40, 48 + 16 * n, 3), np.uint8) for n in range(count)]
    return [picture(str(n), rng, WIDTHS[name], regions - n % 2) for n in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_an_item_does_not_depend_on_its_batch(name, folders):
    model = load_model(name, folders[name], TASK)
    seen = pictures_of(name, 4)
    with torch.inference_mode():
        together = model(*model.batch(ROWS[:4], seen, 32))
        alone = torch.cat([model(*model.batch([row], [one], 32)) for row, one in zip(ROWS, seen, strict=False)])
    assert together.shape == (4, 2)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert model.answers(model.batch(ROWS[:4], seen, 32), TASK) == [TASK.labels[i] for i in alone.argmax(1)]
    assert len({tuple(row) for row in together.tolist()}) == 4


@pytest.mark.parametrize("name", NAMES)
def test_what_it_keeps_it_loads(name, folders, tmp_path):
    torch.manual_seed(3)
    model = load_model(name, folders[name], TASK)
    for _ in range(2):  # in the place of what is there
        model.save(tmp_path / "kept")
    again = load_model(name, tmp_path / "kept", TASK)
    assert isinstance(model.report, LoadReport) and not again.report.fresh
    inputs = model.batch(ROWS, pictures_of(name, len(ROWS)), 32)
    with torch.inference_mode():
        found = again(*again.batch(ROWS, pictures_of(name, len(ROWS)), 32))
        torch.testing.assert_close(model(*inputs), found)  # ViLT sees patches in any order


def test_heads_that_a_source_lacks_are_told(folders):
    fresh = {name: load_model(name, folders[name], TASK).report.fresh for name in NAMES}
    assert {part.split(".")[0] for part in fresh["visualbert-vsr"]} == {"cls"}
    assert {part.split(".")[0] for part in fresh["vilt"]} == {"classifier"}
    assert not fresh["lxmert-vsr"] and not fresh["clip-negation"]  # they go on with what is pretrained


def test_lxmert_answers_by_the_score_of_its_pretraining(folders):
    model = load_model("lxmert-vsr", folders["lxmert-vsr"])
    ids, mask, features, boxes, present = model.batch(ROWS[:3], pictures_of("lxmert-vsr", 3), 32)
    with torch.inference_mode():
        whole = model.network(
            input_ids=ids, attention_mask=mask, visual_feats=features, visual_pos=boxes, visual_attention_mask=present
        )
        ours = model(ids, mask, features, boxes, present)
    torch.testing.assert_close(ours, whole.cross_relationship_score)


def test_lxmert_sees_where_regions_are_and_visualbert_does_not(folders):
    for name, sees in (("lxmert-vsr", True), ("visualbert-vsr", False)):
        model = load_model(name, folders[name])
        (one,) = pictures_of(name, 1)
        moved = Regions(one.key, 100, 100, one.boxes[::-1], one.features)
        with torch.inference_mode():
            outputs = [model(*model.batch(ROWS[:1], [each], 32)) for each in (one, moved)]
        assert torch.equal(*outputs) != sees


@pytest.mark.parametrize("name", ["visualbert-vsr", "lxmert-vsr"])
def test_pictures_without_regions(name, folders):
    model = load_model(name, folders[name])
    nothing = Regions("0", 100, 100, np.empty((0, 4)), np.empty((0, WIDTHS[name]), np.float32))
    with torch.inference_mode():
        assert torch.isfinite(model(*model.batch(ROWS[:2], [nothing, nothing], 32))).all()


def test_vilt_reads_blue_for_red_and_padding_under_legacy_only(folders):
    seen = pictures_of("vilt", 2)
    right, quirky = (load_model("vilt", folders["vilt"], legacy=legacy) for legacy in (False, True))
    quirky.load_state_dict(right.state_dict())
    batches = [model.batch(ROWS[:2], seen, 40) for model in (right, quirky)]
    assert batches[0][0].shape[1] < 40 == batches[1][0].shape[1]
    for first, second in ((0, 2), (1, 1), (2, 0)):
        torch.testing.assert_close(batches[0][2][:, first], batches[1][2][:, second])
    assert batches[0][3].min() == 0
    with torch.inference_mode():
        padded = quirky(*batches[1])
        batches[1][1].fill_(1)
        torch.testing.assert_close(padded, quirky(*batches[1]))  # the padding of texts is attended to


def test_a_picture_that_is_too_long(folders):
    model = load_model("vilt", folders["vilt"])
    with pytest.raises(DataError, match="'000000000001' cannot be prepared for ViLT: one side is 20.0 times the other"):
        model.batch(ROWS[:2], [np.zeros((40, 48, 3), np.uint8), np.zeros((20, 400, 3), np.uint8)], 40)


def test_clip_compares_a_caption_with_its_negation(folders):
    model = load_model("clip-negation", folders["clip-negation"])
    (one,) = pictures_of("clip-negation", 1)
    with torch.inference_mode():
        texts = [ROWS[0].text, "The cat is outside the refrigerator."]
        read = model.tokenizer(texts, padding=True, return_tensors="pt")
        embedded = model.network(**{k: read[k] for k in ("input_ids", "attention_mask")}).text_embeds
        wanted = torch.cosine_similarity(embedded, torch.from_numpy(one.global_features)[None])
        found = model(*model.batch(ROWS[:1], [one], 32))[0]
    torch.testing.assert_close(found, wanted.flip(0))
    like_the_caption = Regions("0", 9, 9, one.boxes, one.features, global_features=embedded[0].numpy())
    assert model.answers(model.batch(ROWS[:1], [like_the_caption], 32), TASK) == ["True"]
    nothing = Regions("0", 9, 9, one.boxes, one.features, global_features=np.zeros(WIDTHS["clip-negation"]))
    assert model.answers(model.batch(ROWS[:1], [nothing], 32), TASK) == ["False"], "of equals the lower label"


@pytest.mark.parametrize("name", ["visualbert-vsr", "lxmert-vsr", "clip-negation"])
def test_records_that_do_not_fit(name, folders):
    model = load_model(name, folders[name])
    wrong = picture("7", np.random.default_rng(0), WIDTHS[name] + 1)
    with pytest.raises(StoreMismatch, match=f"{WIDTHS[name]}.*'7'.*extract with"):
        model.look_at(wrong)
    model.look_at(picture("7", np.random.default_rng(0), WIDTHS[name]))


def test_records_without_an_embedding(folders):
    model = load_model("clip-negation", folders["clip-negation"])
    with pytest.raises(StoreMismatch, match="'7' has none"):
        model.look_at(Regions("7", 9, 9, np.zeros((1, 4)), np.zeros((1, 4), np.float32)))


def test_sources_that_cannot_be_loaded(folders, tmp_path):
    with pytest.raises(InputNotFound, match="no VisualBertForVisualReasoning at .*give a hub id that can be reached"):
        load_model("visualbert-vsr", tmp_path)
    (tmp_path / "config.json").write_text((folders["lxmert-vsr"] / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"not a file of tensors")
    with pytest.raises(WeightsError, match="is no LxmertForPreTraining"):
        load_model("lxmert-vsr", tmp_path)


def test_names_and_tasks_that_there_are_not():
    assert set(NAMES) <= set(list_models())
    with pytest.raises(UsageError, match="unknown model 'blip'; choose from"):
        load_model("blip")
    with pytest.raises(UsageError, match="clip-negation does not answer vsr-frames, but vsr, vsr-zeroshot"):
        load_model("clip-negation", None, load_task("vsr-frames", "."))


def test_recipes_are_the_published_ones():
    found = {name: model_class(name).recipe for name in NAMES}
    assert [(one.lr, one.batch, one.epochs, one.max_tokens) for one in list(found.values())[:3]] == [
        (2e-6, 32, 100, 32), (1e-5, 32, 100, 32), (1e-5, 12, 30, 40),
    ]  # fmt: skip
    assert all((one.validate_every, one.constant, one.clip) == (100, True, None) for one in list(found.values())[:3])
    assert found["clip-negation"] is None


def test_negations():
    assert negated("The cup is left of the cat.", "left of") == "The cup is right of the cat."
    assert negated("The cow is ahead of the person.", "ahead of") == "The cow is not ahead of the person."
    assert negated("The dog is facing the bed.", "facing") == "The dog is facing away from the bed."
    assert negated("The train contains the laptop.", "contains") == "The train does not contain the laptop."
    assert all(ANTONYMS[other] == one for one, other in ANTONYMS.items() if one != "attached to")
    with pytest.raises(DataError, match="does not hold its relation 'under'"):
        negated("The cup is on the table.", "under")
