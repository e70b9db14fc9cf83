"""The training loop, on shrunken encoders and a generated store."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from cache import DataError, StoreMismatch
from consumers.data import TaskData
from consumers.encoders import list_encoders, load_encoder
from consumers.objectives import Labels, Options, Pairs, objective_of
from consumers.recipes import Recipe
from consumers.run_log import LOG
from consumers.tasks import Example
from consumers.training import BEST, LAST, STATE, Trainer

ENCODERS = list_encoders()
RECIPE = Recipe(lr=2e-3, batch=8, accumulate=2, epochs=3, scheduled=4, max_tokens=12)


class Toy:
    """The parts of a task that training asks for."""

    def __init__(self, head, labels=(), metric="accuracy"):
        self.head, self.labels, self.metric = head, labels, metric


HEADS = {
    "xvnli": Toy("xvnli", "abc"),
    "gqa": Toy("gqa", [str(n) for n in range(7)]),
    "nlvr2": Toy("nlvr2", ("False", "True")),
    "retrieval": Toy("retrieval", metric="recall"),
    "vsr": Toy("vsr", ("False", "True")),
}


def examples(task, count=20, seed=0):
    rng = np.random.default_rng(seed)
    for n in range(count):
        pictures = rng.choice(40, 2 if task.head == "nlvr2" else 1, replace=False)
        label = {int(rng.integers(len(task.labels))): 1.0} if task.labels else {}
        yield Example(str(n), f"w{n} w{n % 7} dog", tuple((str(p),) for p in pictures), label)


@pytest.fixture
def make(small_encoder, shrunk, words, feature_store, tmp_path):
    def build(name="uniter", head="xvnli", folder="run", recipe=RECIPE, count=20, **options):
        task = HEADS[head]
        labels = {head: len(task.labels) or 1}
        config = shrunk(name)
        config = replace(config, layout=tuple(dict.fromkeys(config.layout)))  # a sublayer of each kind
        torch.manual_seed(1)
        encoder = load_encoder(config, heads=labels)
        data = TaskData(list(examples(task, count)), feature_store, encoder.config, words(encoder.config), 12)
        objective = objective_of(task, encoder.config)
        return Trainer(encoder, head, objective, data, data, recipe, tmp_path / folder, **options)

    return build


ALL = [(name, head) for name in ENCODERS for head in HEADS]
SOME = [(name, "xvnli" if n % 2 else "retrieval") for n, name in enumerate(ENCODERS)]
SOME += [("uniter", head) for head in HEADS if ("uniter", head) not in SOME]


@pytest.mark.parametrize(
    ("name", "head"), [pytest.param(*pair, marks=() if pair in SOME else pytest.mark.slow) for pair in ALL]
)
def test_every_encoder_and_head_learns_one_batch(make, name, head):
    trainer = make(name, head, count=6, recipe=Recipe(lr=6e-3, batch=6, epochs=50, scheduled=60))
    with torch.no_grad():
        for parameter in trainer.parameters:  # the published initial weights are for models thirty times as wide
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    for module in trainer.encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch = trainer._read(np.arange(6), 0)
    trainer.encoder.train()
    for _ in range(50):
        trainer._update(batch)
    first, last = trainer.progress.losses[0], min(trainer.progress.losses[-5:])
    assert last < 0.4 * first, (first, last)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / LAST)


@pytest.mark.parametrize("head", ["xvnli", "retrieval"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(make, tmp_path, head):
    straight = make(head=head, folder="straight").run()
    for stop_at in (1, 4, 7):
        trainer = make(head=head, folder="stopped")
        trainer.run(stop=lambda stop_at=stop_at, t=trainer: t.progress.updates >= stop_at)
    resumed = make(head=head, folder="stopped").run()
    assert resumed.updates == straight.updates == 9
    for name, tensor in weights(tmp_path / "straight").items():
        assert torch.equal(tensor, weights(tmp_path / "stopped")[name]), name
    logs = [(tmp_path / folder / LOG).read_text() for folder in ("straight", "stopped")]
    assert logs[0] == logs[1] and len(logs[0].splitlines()) == 3


def test_a_finished_run_does_nothing_more(make, tmp_path):
    make().run()
    before = (tmp_path / "run" / STATE).read_bytes()
    assert make().run().updates == 9
    assert (tmp_path / "run" / STATE).read_bytes() == before


def test_the_best_validation_is_kept(make, tmp_path):
    progress = make().run()
    scores = [json.loads(line)["dev"] for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    assert progress.best == max(scores)
    assert progress.best_update == 3 * (1 + scores.index(max(scores)))
    assert (tmp_path / "run" / BEST).exists()


def test_micro_batches_add_up_to_the_batch(make):
    # without dropout, and with a last update that is whole
    def losses(accumulate):
        recipe = Recipe(lr=2e-3, batch=10, accumulate=accumulate, epochs=2, scheduled=2)
        trainer = make(folder=f"parts{accumulate}", recipe=recipe)
        for module in trainer.encoder.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        seen = []
        trainer._report = lambda progress, scores: scores and seen.append(scores["loss"])
        trainer.run()
        return seen

    assert losses(1) == pytest.approx(losses(5), rel=1e-3)


def test_another_run_in_the_folder_is_refused(make):
    make(facts={"task": "a"}).run(stop=lambda: True)
    with pytest.raises(StoreMismatch, match="task: a there, b asked"):
        make(facts={"task": "b"})


def test_a_state_that_cannot_be_read_is_named(make, tmp_path):
    make().run(stop=lambda: True)
    path = tmp_path / "run" / STATE
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"state.pt cannot be read .*delete it"):
        make()


def test_a_loss_that_is_not_finite_stops_the_run(make):
    trainer = make(recipe=Recipe(lr=1e30, batch=4, warmup=0))
    with pytest.raises(DataError, match="the loss is .* lower the learning rate"):
        trainer.run()


def test_options_are_the_caption_and_three_wrong_ones(small_encoder, shrunk, words, feature_store):
    config = shrunk("uc2")
    some = list(examples(HEADS["retrieval"]))
    data = TaskData(some, feature_store, config, words(config), 12)
    own = data.images[:, 0]
    for row in range(len(some)):
        texts, images, target = Options(config, None).pairs(data, [row], np.random.default_rng(row))
        assert texts[0] == texts[2] == row and images[0] == images[1] == images[3] == own[row]
        assert own[texts[1]] != own[row] and images[2] != own[row] and own[texts[3]] != own[row]
        assert target.tolist() == [0]


def test_captions_of_one_picture_are_held_against_other_pictures(shrunk, words, feature_store):
    config = shrunk("uniter")
    one = [Example(str(n), f"w{n}", (("7",),)) for n in range(3)]
    data = TaskData(one, feature_store, config, words(config), 12, others=5)
    assert len(data.keys) == 6 and data.keys[0] == "7"
    texts, images, _ = Options(config, None).pairs(data, [1], np.random.default_rng(0))
    assert texts == [1] * 4 and images[0] == 0 and len(set(images)) == 4
    alone = TaskData(one, feature_store, config, words(config), 12)
    with pytest.raises(DataError, match="no picture beside '7'"):
        Options(config, None).pairs(alone, [1], np.random.default_rng(0))


def test_targets_are_soft_where_labels_are(shrunk, words, feature_store):
    config = shrunk("uniter")
    some = [Example("a", "x", (("1",),), {0: 0.3, 2: 1.0}), Example("b", "y", (("2",),))]
    data = TaskData(some, feature_store, config, words(config), 12)
    _, _, target = Labels(HEADS["xvnli"]).pairs(data, [0, 1], np.random.default_rng(0))
    assert target.tolist() == [[pytest.approx(0.3), 0, 1], [0, 0, 0]]


def test_updates_follow_the_published_optimiser_and_schedule(make):
    """Gradients are cut, then the step is taken at the present rate, the first one at 0, then parameters decay."""
    recipe = Recipe(lr=2e-3, batch=10, epochs=3, scheduled=3, warmup=1 / 3, weight_decay=0.1, clip=0.05)
    trainer, twin = make(folder="a", recipe=recipe), make(folder="b", recipe=recipe)
    assert twin.updates == 6 and recipe.updates(20) == 6
    for one in (trainer, twin):
        for module in one.encoder.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    named = {names[0]: p for names, p in twin.encoder.volta_parameters()}
    means, squares = ({name: torch.zeros_like(p) for name, p in named.items()} for _ in range(2))
    rates = []
    for t in range(1, 7):
        (batch,) = trainer._read(np.arange(t, t + 10), 0)
        trainer._update([batch])
        rates.append(trainer.progress.rate)
        twin.scorer.zero_grad()
        twin.objective.loss(twin.scorer(*batch[0]), batch[1]).backward()
        norm = torch.stack([p.grad.norm() for p in named.values() if p.grad is not None]).norm()
        assert norm > 0.05
        size = rates[-1] * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
        with torch.no_grad():
            for name, p in named.items():
                if p.grad is None:
                    continue
                grad = p.grad * 0.05 / (norm + 1e-6)
                means[name].mul_(0.9).add_(grad, alpha=0.1)
                squares[name].mul_(0.999).addcmul_(grad, grad, value=0.001)
                p.addcdiv_(means[name], squares[name].sqrt().add_(1e-6), value=-size)
                if "bias" not in name and "LayerNorm.weight" not in name:
                    p.add_(p, alpha=-rates[-1] * 0.1)
    assert rates == pytest.approx([0, 1e-3, 2e-3, 1.5e-3, 1e-3, 5e-4])
    for name, p in ((names[0], p) for names, p in trainer.encoder.volta_parameters()):
        assert torch.allclose(p, named[name], atol=2e-6), name


def test_what_does_not_fill_a_micro_batch_is_left_out(make):
    progress = make(recipe=replace(RECIPE, batch=6, drop_last=True)).run()  # 18 of 20
    assert (progress.updates, progress.epoch) == (9, 3)


def test_items_keep_their_own_options():
    pairs = Pairs(list("aabbccdd"), list(range(8)), torch.tensor([1, 2, 3, 4]))
    some = pairs.of(np.array([2, 0]))
    assert (some.texts, some.images, some.target.tolist()) == (list("ccaa"), [4, 5, 0, 1], [3, 1])
