"""How each task was fine-tuned for the published scores (IGLUE, Bugliarello et al., ICML 2022): the defaults here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cache import UsageError

if TYPE_CHECKING:
    from .encoders import EncoderConfig

FEW_SHOT_RATES = (1e-4, 5e-5, 1e-5)
FEW_SHOT_EPOCHS = 20


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of one run.

    Attributes:
        lr: highest learning rate.
        batch: items of one update.
        accumulate: micro-batches that make it up, each of batch / accumulate items.
        epochs: how many are run.
        scheduled: epochs after which the rate would be 0; more than `epochs` stops early, as published.
        warmup: share of the scheduled updates in which the rate rises from 0.
        weight_decay, clip: of AdamW; global L2 norm at which gradients are cut, None for no cut.
        max_tokens: length at which texts are cut.
        validate_every: updates between validations within an epoch; None validates after epochs only.
        dev_items: so many examples of the dev set are looked at, the first ones; None for all.
        hard_negatives: retrieval's fourth option is a caption of a picture that looks alike, rather than any.
        drop_last: leave out what does not fill a micro-batch at the end of an epoch, where there is a whole one.
        seed: of order, negatives, dropout and fresh weights.
        optimizer: "volta" for AdamW as the encoders were trained with, "torch" for torch's own, which decays all, or
            "adafactor" without momentum, whose second moments decay with exponent 0.8.
        constant: the rate neither rises nor falls.
        warmup_updates: updates in which the rate rises, before it falls with the inverse square root of their number;
            None for the straight lines that `warmup` and `scheduled` describe.
        most_updates: the end, within an epoch or not, where `epochs` would be more.
        eps: of AdamW as the encoders were trained with.
        loss: name in `encoders.losses`, None for the loss of the task's head.
        regions, dropout: of the encoder while it is trained and tested on the task, None for its own.
        ahead: the rate of an update is that of so many updates later.
    """

    lr: float
    batch: int
    accumulate: int = 1
    epochs: int = 10
    scheduled: int = 20
    warmup: float = 0.1
    weight_decay: float = 1e-4
    clip: float | None = 1.0
    max_tokens: int = 80
    validate_every: int | None = None
    dev_items: int | None = None
    hard_negatives: bool = False
    drop_last: bool = False
    seed: int = 0
    optimizer: str = "volta"
    constant: bool = False
    warmup_updates: int | None = None
    most_updates: int | None = None
    eps: float = 1e-6
    loss: str | None = None
    regions: int | None = None
    dropout: float | None = None
    ahead: int = 0

    def __post_init__(self) -> None:
        counts = ("batch", "accumulate", "epochs", "scheduled", "max_tokens", "validate_every", "dev_items")
        for name in (*counts, "warmup_updates", "most_updates"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        for name in ("lr", "clip"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, not {value}")
        if not 0 <= self.warmup <= 1 or not self.weight_decay >= 0:
            raise UsageError(
                f"warmup must be from 0 to 1 and weight decay at least 0, not {self.warmup} and {self.weight_decay}"
            )
        if self.batch % self.accumulate:
            raise UsageError(f"a batch of {self.batch} cannot be made of {self.accumulate} equal parts")

    @property
    def micro(self) -> int:
        return self.batch // self.accumulate

    def items(self, examples: int) -> int:
        """How many of so many examples an epoch has."""
        return examples - examples % self.micro if self.drop_last and examples >= self.micro else examples

    def updates(self, examples: int) -> int:
        """Scheduled updates for so many examples: whole groups of micro-batches over all scheduled epochs."""
        return max(1, -(-self.items(examples) // self.micro) * self.scheduled // self.accumulate)


def _oscar(lr: float, batch: int, epochs: int, max_tokens: int, regions: int, **more) -> Recipe:
    """Of the commands that were released with OSCAR+ (VinVL, Zhang et al., CVPR 2021), its base model's."""
    more = {"warmup": 0.0, "dropout": 0.3, **more}
    return Recipe(
        lr, batch, epochs=epochs, scheduled=epochs, weight_decay=0.05, max_tokens=max_tokens, seed=88, eps=1e-8,
        regions=regions, **more,
    )  # fmt: skip


OSCAR = {
    "gqa": _oscar(5e-5, 48, 5, 165, 45, loss="cross_entropy"),
    "vqa2": _oscar(5e-5, 32, 25, 128, 50, loss="summed_binary"),
    "nlvr2": _oscar(3e-5, 72, 20, 55, 40, loss="cross_entropy", warmup=10000 / 24000),  # updates of the whole set
    "flickr30k": _oscar(2e-5, 128, 30, 70, 70, dropout=0.1),  # that of COCO, of 16 captions on each of 8 GPUs
}
OF_ENCODERS = {  # encoders with recipes of their own
    "oscar": OSCAR,
    "oscar-plus": OSCAR,
    "oscar-plus-emb": {"gqa": _oscar(3e-5, 192, 5, 165, 45, loss="cross_entropy")},  # as xGQA's paper has it
    "oscar-plus-ada": {"gqa": _oscar(1e-4, 192, 5, 165, 45, loss="cross_entropy")},
}
RECIPES = {
    "xvnli": Recipe(lr=2e-5, batch=128, accumulate=4),
    "gqa": Recipe(lr=4e-5, batch=256, accumulate=4, epochs=5, max_tokens=40, drop_last=True),
    "nlvr2": Recipe(lr=1e-5, batch=64, accumulate=2, epochs=20, drop_last=True),
    "flickr30k": Recipe(lr=2e-5, batch=64, accumulate=4, hard_negatives=True),
    "wit": Recipe(lr=2e-5, batch=64, accumulate=4, epochs=2, scheduled=2, validate_every=1000, drop_last=True),
    "vsr": Recipe(lr=1e-5, batch=64, epochs=20, max_tokens=40),  # after NLVR2's: none of an encoder was published
    "scenes": Recipe(lr=5e-4, batch=64, epochs=5, scheduled=5, warmup=0.05, max_tokens=24),
    "scene-pairs": Recipe(lr=5e-4, batch=64, epochs=2, scheduled=2, warmup=0.05, max_tokens=24),
}
SAME_AS = {"xgqa": "gqa", "marvl": "nlvr2"}
SAME_AS |= {name: "flickr30k" for name in ("xflickrco", "multi30k", "xm3600")}
SAME_AS |= {name: "gqa" for name in ("maxm", "vqa2", "vq2a-coco", "vq2a-cc3m")}
SAME_AS |= {"vsr-zeroshot": "vsr", "vsr-left-right": "vsr", "vsr-frames": "vsr"}
SAMPLED = ("vsr",)  # tasks whose smaller training sets are samples of the whole one, trained on in the same way
MORE_PARTS = {  # encoders that needed smaller micro-batches
    "xvnli": {"m3p": 8},
    "gqa": {"m3p": 8},
    "nlvr2": {"xuniter": 4, "uc2": 4, "m3p": 4},
    "flickr30k": {"m3p": 8},
    "wit": {"m3p": 8},
}
FEW_SHOT_BATCHES = {
    "xvnli": {"1": 2, "5": 16, "10": 32, "20": 64, "25": 64, "48": 64},
    "gqa": {"1": 8, "5": 16, "10": 32, "20": 64, "25": 64, "48": 64},
    "nlvr2": {"1": 2, "2": 4, "4": 8, "10": 16, "10x2": 32},
    "flickr30k": {
        "1": 1, "5": 2, "10": 4, "25": 8, "50": 16, "100": 32,
        "200": 32, "500": 32, "1000": 32, "1500": 32, "100x5": 32, "200x5": 32,
    },
}  # fmt: skip
FEW_SHOT_PARTS = {  # (task, shots, encoder, or None for all) -> micro-batches
    **{("flickr30k", shots, None): 2 for shots in ("100", "200", "500", "1000", "1500", "100x5", "200x5")},
    ("flickr30k", "100", "m3p"): 4,
    **{(task, shots, "m3p"): 2 for task in ("xvnli", "gqa") for shots in ("20", "25", "48")},
    ("nlvr2", "10x2", "m3p"): 2,
}
FEW_SHOT_DEV_ITEMS = {"nlvr2": 15 * 32, "flickr30k": 130 * 16}  # the published code left the last batch of them out


def few_shot_rates(task: str, encoder: str) -> tuple[float, ...]:
    """The learning rates that each few-shot set was trained with."""
    if SAME_AS.get(task, task) in SAMPLED:
        return (published_recipe(task, encoder).lr,)
    return FEW_SHOT_RATES


def own_recipe(task: str, encoder: str) -> Recipe | None:
    """What an encoder's own publication has for a task, if anything."""
    own = OF_ENCODERS.get(encoder, {})
    return own.get(task) or own.get(SAME_AS.get(task, task))


def fitted(config: EncoderConfig, task: str) -> EncoderConfig:
    """An encoder's configuration with the number of regions and the dropout that its own recipe has for a task."""
    if (own := own_recipe(task, config.name)) is None:
        return config
    rate = {} if own.dropout is None else {"dropout": own.dropout}
    streams = {"text": replace(config.text, **rate), "image": replace(config.image, **rate)}
    return replace(config, regions=own.regions or config.regions, **streams)


def with_quirks(recipe: Recipe, task: str, encoder: str) -> Recipe:
    """A recipe as the encoder's published code carried it out: OSCAR's took the rate of the update after."""
    return replace(recipe, ahead=1) if own_recipe(task, encoder) else recipe


def published_recipe(task: str, encoder: str, shots: str | None = None) -> Recipe:
    """The published hyper-parameters of a task and an encoder, for a few-shot set with its first learning rate.

    Raises: UsageError: none were published for them.
    """
    from .models import MODELS, model_class

    if encoder in MODELS:
        if (own := model_class(encoder).recipe) is None:
            raise UsageError(f"{encoder} is used as it is, and not fine-tuned")
        return own
    base = SAME_AS.get(task, task)
    if base not in RECIPES:
        able = [name for name in MODELS if task in model_class(name).tasks]
        known = f"it is for the models {', '.join(able)}" if able else f"there are {', '.join([*RECIPES, *SAME_AS])}"
        raise UsageError(f"no recipe was published for {task} and {encoder}; {known}")
    recipe = own_recipe(task, encoder) or RECIPES[base]
    if shots is None or base in SAMPLED:
        return replace(recipe, accumulate=MORE_PARTS.get(base, {}).get(encoder, recipe.accumulate))
    if shots not in FEW_SHOT_BATCHES.get(base, {}):
        known = ", ".join(FEW_SHOT_BATCHES.get(base, {})) or "none"
        raise UsageError(f"no recipe was published for {task} with {shots} shots; there are {known}")
    parts = FEW_SHOT_PARTS.get((base, shots, encoder), FEW_SHOT_PARTS.get((base, shots, None), 1))
    batch = FEW_SHOT_BATCHES[base][shots]
    return replace(
        recipe, lr=FEW_SHOT_RATES[0], batch=batch, accumulate=parts, epochs=FEW_SHOT_EPOCHS, scheduled=FEW_SHOT_EPOCHS,
        validate_every=None, dev_items=FEW_SHOT_DEV_ITEMS.get(base), hard_negatives=False, drop_last=False,
    )  # fmt: skip
