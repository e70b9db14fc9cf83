"""The published optimiser, step by step."""

import zlib

import numpy as np
import pytest
import torch

from consumers.optimizer import AdamW, optimizer_of, parameter_groups, schedule_of, warmup_linear
from consumers.recipes import Recipe


def published_step(p, grad, state, lr, decay, eps=1e-6, b1=0.9, b2=0.999):
    """In double precision, as the formula reads."""
    state["t"] += 1
    state["m"] = b1 * state["m"] + (1 - b1) * grad
    state["v"] = b2 * state["v"] + (1 - b2) * grad**2
    size = lr * (1 - b2 ** state["t"]) ** 0.5 / (1 - b1 ** state["t"])
    p = p - size * state["m"] / (np.sqrt(state["v"]) + eps)
    return p - lr * decay * p


def test_steps_follow_the_formula():
    generator = np.random.default_rng(0)
    start, state = generator.standard_normal(6), {"t": 0, "m": 0.0, "v": 0.0}
    expected = start.copy()
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float32))
    optimizer = AdamW([parameter], lr=0.01, weight_decay=0.1)
    for _ in range(5):
        grad = generator.standard_normal(6) * 1e-5  # so small that epsilon matters
        parameter.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
        expected = published_step(expected, grad, state, 0.01, 0.1)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-6)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == (0.01, 1e-6, 0.1)


def test_golden_trajectory(golden, golden_weights):
    with np.load(golden / "optim_adamw_warmuplinear.npz") as file:
        data = dict(file)
    names = [name.removeprefix("step0/") for name in data if name.startswith("step0/")]
    weights = golden_weights({name: data[f"step0/{name}"].shape for name in names})
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in weights.items()}
    groups = parameter_groups(parameters, float(data["weight_decay"]))
    optimizer = AdamW(groups, lr=float(data["lr_base"]))
    schedule = warmup_linear(optimizer, float(data["warmup_steps"]), int(data["t_total"]))
    for t, rate in enumerate(data["lrs_used"]):
        for name, parameter in parameters.items():
            draw = np.random.Generator(np.random.PCG64(zlib.crc32(f"grad/{t}/{name}".encode())))
            parameter.grad = torch.from_numpy(draw.standard_normal(tuple(parameter.shape)).astype(np.float32))
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), float(data["clip"]))
        assert norm.item() == pytest.approx(float(data[f"gradnorm_{t}"]), abs=1e-5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, abs=1e-12)
        optimizer.step()
        schedule.step()
        for name, parameter in parameters.items():
            np.testing.assert_allclose(parameter.detach().numpy(), data[f"step{t}/{name}"], rtol=0, atol=1e-6)


def test_decay_by_published_name(small_encoder):
    encoder = small_encoder("uniter", heads=("gqa",))
    named = {names[0]: p for names, p in encoder.volta_parameters()}
    decayed, free = parameter_groups(named, 0.01)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0.0)
    of = {id(p): name for name, p in named.items()}
    gains = {name for p in decayed["params"] if p.ndim == 1 for name in (of[id(p)],)}
    assert gains == {
        "bert.embeddings.image_layer_norm.weight",
        "bert.embeddings.image_location_layer_norm.weight",
        "clfs_dict.TASK15.logit_fc.2.weight",
    }
    assert len(decayed["params"]) + len(free["params"]) == len(named)


def test_frozen_parameters_are_left_out(small_encoder):
    encoder = small_encoder("m3p")
    groups = parameter_groups({names[0]: p for names, p in encoder.volta_parameters()})
    count = sum(len(group["params"]) for group in groups)
    assert count == sum(p.requires_grad for p in encoder.parameters()) < len(list(encoder.parameters()))


def test_schedule():
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = AdamW([parameter], lr=1.0)
    schedule, rates = warmup_linear(optimizer, 2, 6), []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0])


def test_resuming_goes_on_the_same():
    def run(steps, optimizer, parameter, first=0):
        for t in range(first, first + steps):
            parameter.grad = torch.full((3,), 1e-6 * (t + 1))
            optimizer.step()

    whole = torch.nn.Parameter(torch.ones(3))
    run(6, AdamW([whole], lr=0.1), whole)
    part = torch.nn.Parameter(torch.ones(3))
    before = AdamW([part], lr=0.1)
    run(3, before, part)
    after = AdamW([part], lr=0.1)
    after.load_state_dict(before.state_dict())
    run(3, after, part, first=3)
    assert torch.equal(whole, part)


def test_torch_s_own_decays_all_and_a_constant_rate_stays():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    recipe = Recipe(lr=1e-3, batch=4, weight_decay=0.01, optimizer="torch", constant=True)
    optimizer = optimizer_of(model, recipe)
    (group,) = optimizer.param_groups
    assert type(optimizer) is torch.optim.AdamW and len(group["params"]) == 4
    assert (group["eps"], group["weight_decay"], group["betas"]) == (1e-8, 0.01, (0.9, 0.999))
    schedule = schedule_of(optimizer, recipe, examples=8)
    for _ in range(50):
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [1e-3]
