"""What do a training step and the scoring of pairs cost, beside Volta with the same weights and inputs?

    python benchmarks/encoders.py --volta DIR [--encoder uniter] [--threads 2] [--rounds 5] [--precision float32]

DIR holds the package `volta` (a checkout of e-bug/volta or e-bug/iglue). Without it only this side is timed.

Both sides get captions of about 16 tokens and 37 region slots. Volta is given them as its data sets do: padded to 80
tokens, every pair from its token ids and features, float32, and in training the optimiser of pytorch_transformers.
A training step is forward, backward, clipping and the optimiser's step on a batch of 8; scoring is one caption with 32
images, here from texts and regions embedded once (their cost per item is a line of its own). Rounds alternate between
the ways, so that all meet the same weather; the table has medians of CPU seconds (all threads) and of wall seconds, and
ratios of the CPU seconds round by round. Weights are random, of the full size.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from consumers.encoders import Encoder, list_encoders, load_encoder, score_pairs  # noqa: E402
from consumers.optimizer import AdamW, parameter_groups  # noqa: E402

BATCH, PAIRS, SLOTS, PUBLISHED_LENGTH = 8, 32, 37, 80
LENGTHS = (12, 14, 15, 16, 16, 17, 18, 20)  # tokens of the captions of a batch
TASKS = {
    "TASK19": {"type": "VL-tri-classifier", "num_labels": 3},
    "TASK8": {"type": "VL-logit", "num_labels": 1},
}
FILES = {
    "lxmert-original": "lxmert.json",
    "vilbert-original": "vilbert_base.json",
    "uc2": "uc2_base.json",
    "m3p": "m3p_base.json",
}
GATES = {"train float32": 2.0, "train bfloat16": 3.5, "score float32": 2.5, "score bfloat16": 4.0}


def import_volta(folder: Path) -> types.ModuleType:
    """Volta's encoders, with stand-ins for the packages that it only downloads and logs with."""
    for name in ("boto3", "botocore", "botocore.exceptions", "requests", "tensorboardX"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["botocore.exceptions"].ClientError = Exception
    sys.modules["tensorboardX"].SummaryWriter = object
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # VisualBERT's embeddings ask for a GPU
    sys.path.insert(0, str(folder))
    return importlib.import_module("volta.encoders")


def build_volta(folder: Path, encoder: str) -> nn.Module:
    module, config_module = import_volta(folder), importlib.import_module("volta.config")
    name = FILES.get(encoder, f"ctrl_{encoder}_base.json")
    config = json.loads((folder / "config" / name).read_text("utf-8"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"v_pooler_size": config.get("pooler_size"), **config}, file)
        file.flush()
        if encoder == "m3p":
            return module.M3PForVLTasks(config_module.M3PConfig.from_json_file(file.name), TASKS, list(TASKS))
        return module.BertForVLTasks(config_module.BertConfig.from_json_file(file.name), TASKS, list(TASKS))


class PublishedAdamW:
    """The updates of pytorch_transformers' AdamW as they are there: tensor by tensor, operation by operation."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], lr: float, decay: float):
        self.named, self.lr, self.decay, self.state, self.t = list(named), lr, decay, {}, 0

    @torch.no_grad()
    def step(self) -> None:
        self.t += 1
        size = self.lr * (1 - 0.999**self.t) ** 0.5 / (1 - 0.9**self.t)
        for name, p in self.named:
            if p.grad is None:
                continue
            mean, square = self.state.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.addcdiv_(mean, square.sqrt().add_(1e-6), value=-size)
            if "bias" not in name and "LayerNorm.weight" not in name:
                p.add_(p, alpha=-self.lr * self.decay)


class Inputs:
    """Captions, regions and targets of one batch, and of one caption with many images."""

    def __init__(self, config, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.tensor(LENGTHS)
        ids = torch.randint(1000, 30000, (BATCH, PUBLISHED_LENGTH), generator=generator)
        self.mask = (torch.arange(PUBLISHED_LENGTH) < lengths[:, None]).long()
        self.ids = torch.where(self.mask.bool(), ids, config.pad_id)
        self.features, self.locations = self.regions(config, BATCH, generator)
        self.many = self.regions(config, PAIRS, generator)
        self.target = F.one_hot(torch.randint(3, (BATCH,), generator=generator), 3).float()

    @staticmethod
    def regions(config, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        features = torch.randn(count, SLOTS, config.feature_dim, generator=generator).clamp(min=0)
        corners = torch.rand(count, SLOTS, 2, 2, generator=generator).sort(2).values.flatten(2)
        rest = torch.rand(count, SLOTS, 3, generator=generator)
        return features, torch.cat((corners, rest), 2)[..., : config.location_dim]


class Volta:
    def __init__(self, model: nn.Module, inputs: Inputs):
        self.model, self.inputs = model, inputs
        self.optimizer = PublishedAdamW(model.named_parameters(), 2e-5, 1e-4)

    def forward(self, task: str, ids: Tensor, mask: Tensor, features: Tensor, locations: Tensor) -> Tensor:
        ones = torch.ones(features.shape[:2], dtype=torch.long)
        return self.model(ids, features, locations, task, torch.zeros_like(ids), mask, ones)[0]

    def loss(self) -> Tensor:
        x = self.inputs
        return F.binary_cross_entropy_with_logits(
            self.forward("TASK19", x.ids, x.mask, x.features.clone(), x.locations), x.target
        )

    def step(self) -> None:
        self.loss().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.model.zero_grad()

    def train(self) -> tuple[float, float]:
        self.model.train()
        return timed(self.step)

    @torch.no_grad()
    def scores(self) -> Tensor:
        x = self.inputs
        ids, mask = (t[3:4].expand(PAIRS, -1).contiguous() for t in (x.ids, x.mask))
        return self.forward("TASK8", ids, mask, x.many[0].clone(), x.many[1]).squeeze(1)

    def score(self) -> tuple[float, float]:
        self.model.eval()
        return timed(self.scores)


class Ours:
    def __init__(self, encoder: Encoder, inputs: Inputs, precision: str):
        self.encoder, self.inputs, self.precision = encoder, inputs, precision
        named = {names[0]: p for names, p in encoder.volta_parameters()}
        self.optimizer = AdamW(parameter_groups(named), lr=2e-5)
        size = int(inputs.mask.sum(1).max())
        self.ids, self.mask = inputs.ids[:, :size], inputs.mask[:, :size]

    def cast(self):
        return nullcontext() if self.precision == "float32" else torch.autocast("cpu", torch.bfloat16)

    def loss(self) -> Tensor:
        x = self.inputs
        ones = torch.ones(x.features.shape[:2], dtype=torch.bool)
        output = self.encoder(self.ids, self.mask, x.features, x.locations, ones)
        return F.binary_cross_entropy_with_logits(self.encoder.head("xvnli")(output).float(), x.target)

    def train(self) -> tuple[float, float]:
        self.encoder.train()
        return timed(self.step)

    def step(self) -> None:
        with self.cast():
            loss = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in self.encoder.parameters() if p.grad is not None], 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def embed(self) -> tuple[float, float]:
        self.encoder.eval()
        with torch.inference_mode(), self.cast():
            return timed(self.embedded)

    def embedded(self) -> None:
        ones = torch.ones(PAIRS, SLOTS, dtype=torch.bool)
        self.text = self.encoder.embed_text(self.ids[3:4], self.mask[3:4])
        self.regions = self.encoder.embed_regions(*self.inputs.many, ones)

    def scores(self) -> Tensor:
        with self.cast():
            return score_pairs(self.encoder, self.text, self.regions)[0]

    def score(self) -> tuple[float, float]:
        self.encoder.eval()
        with self.cast():
            score_pairs(self.encoder, self.text, self.regions[:1])  # autocast keeps the weights that it has cast
            return timed(lambda: score_pairs(self.encoder, self.text, self.regions))


def timed(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--volta", type=Path, help="folder with the package volta and its config/")
    parser.add_argument("--encoder", default="uniter", choices=list_encoders())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="float32,bfloat16", help="of ours, comma separated")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    ways: dict[str, object] = {}
    encoder = load_encoder(args.encoder, heads=("xvnli", "retrieval"), legacy=True)
    if args.volta:
        model = build_volta(args.volta, args.encoder)
        model.load_state_dict(encoder.to_volta(), strict=True)
    else:
        print("no --volta DIR: only this side is timed", file=sys.stderr)
    inputs = Inputs(encoder.config)
    if args.volta:
        ways["volta"] = Volta(model, inputs)
    for precision in args.precision.split(","):
        ways[precision] = Ours(encoder, inputs, precision)

    names = {way: "volta" if way == "volta" else f"roivault {way}" for way in ways}
    scores = {}
    if args.volta:
        model.eval()
    for way, side in ways.items():
        if way != "volta":
            side.embed()
        scores[way] = side.scores()
    facts = {"encoder": args.encoder, "threads": args.threads, "rounds": args.rounds}
    if args.volta:
        with torch.no_grad():
            facts["loss difference"] = abs(ways["volta"].loss() - ways[args.precision.split(",")[0]].loss()).item()
        for way in list(ways)[1:]:
            facts[f"{way} score difference"] = (scores[way] - scores["volta"]).abs().max().item()
            facts[f"{way} same ranking"] = torch.equal(scores[way].argsort(), scores["volta"].argsort())

    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn in range(args.rounds + 1):  # the first is a warm-up
        for task in ("embed", "score", "train"):
            for way, side in ways.items():
                if hasattr(side, task):
                    seconds.setdefault((task, way), []).append(getattr(side, task)())
        if not turn:
            seconds.clear()

    rows = []
    for (task, way), measured in seconds.items():
        per = {"score": PAIRS, "embed": PAIRS, "train": 1}[task]
        row = {
            "what": {"score": "pair scored", "embed": "image embedded", "train": f"step of {BATCH}"}[task],
            "way": names[way],
            "cpu ms": statistics.median(cpu for cpu, _ in measured) / per * 1e3,
            "wall ms": statistics.median(wall for _, wall in measured) / per * 1e3,
        }
        if way != "volta" and (task, "volta") in seconds:
            ratios = [v[0] / o[0] for v, o in zip(seconds[task, "volta"], measured, strict=True)]
            row |= {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
            row["gate"] = GATES[f"{task} {way}"]
        rows.append(row)
    if args.json:
        print(json.dumps({"facts": facts, "rows": rows}))
        return
    print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n")
    print(f"{'':16}{'':20}{'cpu ms':>10}{'wall ms':>10}{'ratio':>8}{'range':>14}{'wanted':>8}")
    for row in rows:
        line = f"{row['what']:16}{row['way']:20}{row['cpu ms']:10.1f}{row['wall ms']:10.1f}"
        if "ratio" in row:
            line += f"{row['ratio']:8.2f}{row['least']:7.2f}-{row['most']:.2f}{row['gate']:9.1f}"
        print(line)


if __name__ == "__main__":
    main()
