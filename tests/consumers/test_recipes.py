"""The published hyper-parameters, held against the figures of the published logs."""

import pytest

from cache import UsageError
from consumers.recipes import FEW_SHOT_RATES, Recipe, few_shot_rates, published_recipe

# examples of the published training sets, as their logs tell them -> updates of the schedule there
STEPS = {
    "xvnli": (540_890, 84_515), "gqa": (943_000, 73_670), "nlvr2": (86_373, 26_990),
    "flickr30k": (145_000, 45_315), "wit": (500_000, 15_625),
}  # fmt: skip
SMALL = ("muniter", "lxmert", "uniter", "vilbert", "visualbert", "vl-bert")  # encoders whose NLVR2 parts are larger
PARTS = {"xvnli": (4, 4, 8), "gqa": (4, 4, 8), "nlvr2": (2, 4, 4), "flickr30k": (4, 4, 8), "wit": (4, 4, 8)}
FEW = {  # task -> shots -> items of an update, micro-batches, those of M3P
    "xvnli": {"1": (2, 1, 1), "5": (16, 1, 1), "10": (32, 1, 1), "20": (64, 1, 2), "25": (64, 1, 2), "48": (64, 1, 2)},
    "xgqa": {"1": (8, 1, 1), "5": (16, 1, 1), "10": (32, 1, 1), "20": (64, 1, 2), "25": (64, 1, 2), "48": (64, 1, 2)},
    "marvl": {"1": (2, 1, 1), "2": (4, 1, 1), "4": (8, 1, 1), "10": (16, 1, 1), "10x2": (32, 1, 2)},
    "xflickrco": {
        "1": (1, 1, 1), "5": (2, 1, 1), "10": (4, 1, 1), "25": (8, 1, 1), "50": (16, 1, 1), "100": (32, 2, 4),
        **{shots: (32, 2, 2) for shots in ("200", "500", "1000", "1500", "100x5", "200x5")},
    },
}  # fmt: skip


@pytest.mark.parametrize("task", STEPS)
@pytest.mark.parametrize("encoder", ["uniter", "uc2"])
def test_schedules_have_the_published_lengths(task, encoder):
    examples, steps = STEPS[task]
    assert published_recipe(task, encoder).updates(examples) == steps


@pytest.mark.parametrize(
    ("task", "lr", "batch", "epochs", "scheduled", "tokens"),
    [
        ("xvnli", 2e-5, 128, 10, 20, 80), ("gqa", 4e-5, 256, 5, 20, 40), ("nlvr2", 1e-5, 64, 20, 20, 80),
        ("flickr30k", 2e-5, 64, 10, 20, 80), ("wit", 2e-5, 64, 2, 2, 80),
    ],
)  # fmt: skip
def test_full_training_is_as_published(task, lr, batch, epochs, scheduled, tokens):
    for encoders, parts in zip((SMALL, ("xuniter", "uc2"), ("m3p",)), PARTS[task], strict=True):
        for encoder in encoders:
            one = published_recipe(task, encoder)
            assert (one.lr, one.batch, one.epochs, one.scheduled) == (lr, batch, epochs, scheduled)
            assert (one.max_tokens, one.accumulate, one.seed, one.dev_items) == (tokens, parts, 0, None)
            assert (one.warmup, one.weight_decay, one.clip) == (0.1, 1e-4, 1.0)
            assert one.hard_negatives == (task == "flickr30k")
            assert one.validate_every == (1000 if task == "wit" else None)


@pytest.mark.parametrize(("task", "shots"), [(task, shots) for task in FEW for shots in FEW[task]])
def test_few_shot_training_is_as_published(task, shots):
    batch, parts, parts_of_m3p = FEW[task][shots]
    for encoder, accumulate in (("xuniter", parts), ("m3p", parts_of_m3p)):
        one = published_recipe(task, encoder, shots)
        assert (one.batch, one.accumulate, one.epochs, one.scheduled) == (batch, accumulate, 20, 20)
        assert one.lr == FEW_SHOT_RATES[0] == 1e-4 and FEW_SHOT_RATES[1:] == (5e-5, 1e-5)
        assert one.dev_items == {"marvl": 480, "xflickrco": 2080}.get(task)
        assert not one.hard_negatives and not one.drop_last


def test_what_was_not_published_is_refused():
    with pytest.raises(UsageError, match="wit with 5 shots; there are none"):
        published_recipe("wit", "uc2", "5")
    with pytest.raises(UsageError, match="marvl with 48 shots; there are 1, 2, 4, 10, 10x2"):
        published_recipe("marvl", "uc2", "48")


def test_an_epoch_without_a_whole_part_has_all_examples():
    recipe = Recipe(lr=1e-3, batch=8, accumulate=2, drop_last=True)
    assert [recipe.items(n) for n in (3, 4, 11, 12)] == [3, 4, 8, 12]


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"dev_items": 0}, {"validate_every": 0}, {"lr": 0}, {"warmup": 1.1}, {"accumulate": 3}]
)
def test_recipes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        Recipe(**{"lr": 1e-3, "batch": 8, **wrong})


def test_samples_of_vsr_are_trained_on_as_the_whole():
    assert published_recipe("vsr-zeroshot", "uc2", "25%") == published_recipe("vsr", "uc2")
    assert published_recipe("vsr", "vilt", "100") == published_recipe("vsr-frames", "vilt")
    assert few_shot_rates("vsr", "lxmert-vsr") == (1e-5,) and few_shot_rates("xvnli", "uc2") == FEW_SHOT_RATES


def test_a_model_that_is_used_as_it_is_has_no_recipe():
    with pytest.raises(UsageError, match="clip-negation is used as it is"):
        published_recipe("vsr", "clip-negation")
