"""The optimiser and schedule that the published encoders were fine-tuned with (pytorch_transformers 1.1's AdamW), and
those of models that were trained with torch's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from .encoders import Encoder
from .recipes import Recipe


class AdamW(torch.optim.AdamW):
    """Adam with bias correction whose epsilon is added before the correction and whose decay follows the step.

    One step at learning rate a: p <- (p - a sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)) * (1 - a * decay).
    It runs on torch's fused kernel, which adds epsilon after the correction and decays first: an epsilon of
    eps / sqrt(1 - b2^t), a rate of a * (1 - a * decay) and a decay of decay / (1 - a * decay) make the two equal.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-4,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        given = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        for group, (lr, eps, decay) in zip(self.param_groups, given, strict=True):
            kept = 1 - lr * decay
            group["lr"], group["weight_decay"] = lr * kept, decay / kept
            group["eps"] = eps / (1 - group["betas"][1] ** self.steps) ** 0.5
        try:
            return super().step(closure)
        finally:
            for group, (lr, eps, decay) in zip(self.param_groups, given, strict=True):
                group["lr"], group["eps"], group["weight_decay"] = lr, eps, decay

    def state_dict(self) -> dict:
        return super().state_dict() | {"steps": self.steps}

    def load_state_dict(self, state_dict: Mapping) -> None:
        self.steps = state_dict["steps"]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "steps"})


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimiser of a recipe for the trainable parameters of an encoder, or of a model beside them."""
    if recipe.optimizer == "volta":
        parameters = model.volta_parameters() if isinstance(model, Encoder) else _named(model)
        groups = parameter_groups({names[0]: parameter for names, parameter in parameters}, recipe.weight_decay)
        return AdamW(groups, recipe.lr, eps=recipe.eps)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if recipe.optimizer == "adafactor":  # which has no momentum, and the rate in parts of a parameter's own size
        return torch.optim.Adafactor(trainable, recipe.lr, beta2_decay=-0.8, weight_decay=recipe.weight_decay)
    return torch.optim.AdamW(trainable, recipe.lr, weight_decay=recipe.weight_decay)


def _named(model: nn.Module) -> list[tuple[tuple[str], nn.Parameter]]:
    return [((name,), parameter) for name, parameter in model.named_parameters()]


def schedule_of(optimizer: torch.optim.Optimizer, recipe: Recipe, examples: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rates of a recipe over the updates that so many examples make."""
    if recipe.constant:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    if recipe.warmup_updates:
        return warmup_inverse_root(optimizer, recipe.warmup_updates)
    total = recipe.updates(examples)
    return warmup_linear(optimizer, recipe.warmup * total, total, recipe.ahead)


def parameter_groups(named: Mapping[str, nn.Parameter], weight_decay: float = 1e-4) -> list[dict]:
    """Trainable parameters in a group with decay and one without, by their names in Volta (for an encoder:
    `{names[0]: p for names, p in encoder.volta_parameters()}`).

    As published, biases and the norms called LayerNorm do not decay; norms of other names do.
    """
    groups = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in named.items():
        if parameter.requires_grad:
            free = "bias" in name or "LayerNorm.weight" in name
            groups[free]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def warmup_linear(
    optimizer: torch.optim.Optimizer, warmup: float, total: int, ahead: int = 0
) -> torch.optim.lr_scheduler.LambdaLR:
    """Learning rate from 0 up over `warmup` steps, then down to 0 at step `total`; the first step has rate 0, or
    that of the step `ahead`."""

    def factor(step: int) -> float:
        step += ahead
        if step < warmup:
            return step / max(1.0, warmup)
        return max(0.0, (total - step) / max(1.0, total - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def warmup_inverse_root(optimizer: torch.optim.Optimizer, warmup: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Learning rate up over `warmup` steps, of which the first has a part already, then down with 1 / sqrt(step)."""

    def factor(step: int) -> float:
        return min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
