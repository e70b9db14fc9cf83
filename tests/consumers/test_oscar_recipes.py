"""How OSCAR+ was fine-tuned: its released commands, and the rates that they trained with."""

import json

import pytest
import torch

from consumers.encoders import encoder_config, list_encoders
from consumers.objectives import objective_of
from consumers.optimizer import AdamW, optimizer_of, schedule_of
from consumers.published import published_scores
from consumers.recipes import OF_ENCODERS, Recipe, fitted, own_recipe, published_recipe, with_quirks
from tests.consumers.conftest import SHARED

COMMANDS = {  # task -> rate, batch, epochs, warm-up of 24,000 updates, tokens, regions, dropout
    "gqa": (5e-5, 48, 5, 0, 165, 45, 0.3),
    "vqa2": (5e-5, 32, 25, 0, 128, 50, 0.3),
    "nlvr2": (3e-5, 72, 20, 10_000, 55, 40, 0.3),
    "flickr30k": (2e-5, 128, 30, 0, 70, 70, 0.1),
}


@pytest.mark.parametrize("encoder", ["oscar", "oscar-plus"])
@pytest.mark.parametrize("task", COMMANDS)
def test_recipes_are_the_released_commands(task, encoder):
    one = published_recipe(task, encoder)
    warmup = round(one.warmup * 24_000)
    assert (one.lr, one.batch, one.epochs, warmup, one.max_tokens, one.regions, one.dropout) == COMMANDS[task]
    assert (one.scheduled, one.weight_decay, one.clip, one.seed, one.eps) == (one.epochs, 0.05, 1.0, 88, 1e-8)
    config = fitted(encoder_config(encoder), task)
    assert config.collation["max_regions"] == one.regions
    assert config.text.dropout == config.image.dropout == one.dropout and config.text.attention_dropout == 0.1


def test_tasks_alike_have_the_same_recipe():
    assert published_recipe("xgqa", "oscar-plus") == published_recipe("gqa", "oscar-plus")
    assert published_recipe("marvl", "oscar") == published_recipe("nlvr2", "oscar")
    assert published_recipe("xflickrco", "oscar") == published_recipe("flickr30k", "oscar")
    assert own_recipe("xvnli", "oscar") is None
    assert published_recipe("xvnli", "oscar") == published_recipe("xvnli", "uniter")
    assert [published_recipe("xgqa", f"oscar-plus-{one}").lr for one in ("emb", "ada")] == [3e-5, 1e-4]
    assert published_recipe("xgqa", "oscar-plus-ada").batch == 192
    assert set(OF_ENCODERS) <= set(list_encoders())


def test_quirks_are_those_of_the_released_commands():
    one = published_recipe("xgqa", "oscar-plus")
    assert (one.ahead, with_quirks(one, "xgqa", "oscar-plus").ahead) == (0, 1)
    assert with_quirks(one, "xgqa", "uniter") == one and fitted(encoder_config("uniter"), "xgqa").name == "uniter"


def test_published_recipes_of_others_stay_as_they_are():
    assert published_recipe("gqa", "uniter") == Recipe(
        lr=4e-5, batch=256, accumulate=4, epochs=5, max_tokens=40, drop_last=True
    )


class Questions:
    head, labels, metric = "gqa", ("yes", "no", "red"), "accuracy"


@pytest.mark.parametrize("task", ["gqa", "vqa2"])
def test_answers_are_told_apart_or_judged_one_by_one(task, shrunk):
    config, recipe = shrunk("oscar-plus"), published_recipe(task, "oscar-plus")
    objective = objective_of(Questions, config, loss=recipe.loss)
    logits, target = torch.zeros(2, 3), torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    each = {"gqa": torch.tensor(3.0).log(), "vqa2": 3 * torch.tensor(2.0).log()}[task]
    torch.testing.assert_close(objective.loss(logits, target), each)


@pytest.mark.parametrize("warmup", [0, 4, 10])
@pytest.mark.parametrize(("ahead", "order"), [(0, "opt_first(pretraining)"), (1, "sched_first(fine-tuning)")])
def test_rates_in_both_orders_of_schedule_and_optimiser(warmup, ahead, order):
    path = SHARED / "golden" / "oscar" / "packing.json"
    if not path.is_file():
        pytest.skip(f"no golden data at {path}; set ROIVAULT_SHARED")
    wanted = json.loads(path.read_text("utf-8"))["lr_multiplier_used_at_each_update"]
    recipe = Recipe(lr=1.0, batch=1, epochs=1, scheduled=1, warmup=warmup / 10, ahead=ahead)
    optimizer = AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = schedule_of(optimizer, recipe, 10), []
    for _ in range(10):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(wanted[f"warmup{warmup}_total10_{order}"], abs=1e-12)


def test_only_what_is_called_a_layer_norm_is_free_of_decay(small_encoder):
    """As published: that of the hidden layer of two pictures' head is `classifier.2`."""
    encoder = small_encoder("oscar-plus", heads=("nlvr2",))
    groups = optimizer_of(encoder, published_recipe("nlvr2", "oscar-plus")).param_groups
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    decays = [{id(p) for p in group["params"]} for group in groups]
    assert id(encoder.heads["nlvr2"].norm.weight) in decays[0]
    assert id(encoder.image_embed.norm.weight) in decays[1]


def test_the_published_rows_are_those_of_encoders_here():
    rows = {(one.model, one.place.language): one.value for one in published_scores() if one.table == "11"}
    assert {name for name, _ in rows} >= {"oscar-plus-emb", "oscar-plus-ada"}
    assert (rows["oscar-plus-emb", "de"], rows["oscar-plus-ada", "avg"]) == (17.3, 18.3)
