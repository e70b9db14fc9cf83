"""Train the `demo` detector from scratch on drawn scenes; an hour on two CPU cores is enough.

The recipe is that of Faster R-CNN (Ren et al. 2015) with the attribute head of bottom-up attention (Anderson et al.
2018): matching and sampling by torchvision, proposals and box arithmetic by the detector itself. The same seed, number
of steps and threads give the same weights on the same machine.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, Matcher
from torchvision.ops import box_iou

from .boxes import encode_deltas
from .configs import Preprocess
from .detector import Detector
from .preprocess import frame, network_input
from .preset import Preset
from .presets import DEMO
from .roi_heads import BOX_WEIGHTS
from .scenes import ATTRIBUTES, CLASSES, HELD_OUT_SEED, IMAGE_SIZES, make_scene


@dataclass(frozen=True)
class Recipe:
    """The training run. `seed` names the series of scenes and the initial weights; lengths are optimiser steps."""

    seed: int = 0
    steps: int = 3000
    batch: int = 8
    learning_rate: float = 3e-3
    warmup: int = 200
    weight_decay: float = 0.02
    anchors_per_image: int = 64
    rois_per_image: int = 24
    checkpoint_every: int = 200
    workers: int = 2
    threads: int = 2


@dataclass(frozen=True)
class Truth:
    """One image's objects: boxes f32[n,4] in resized pixels, class ids i64[n], attribute shares f32[n,A+1]."""

    boxes: Tensor
    classes: Tensor
    attributes: Tensor


def truth_of(scene: dict, height: int, width: int, attributes: int = len(ATTRIBUTES)) -> Truth:
    """A scene's objects as targets for its image resized to height x width.

    An object's attribute target is uniform over its attributes; the last column, "none", stays 0.
    """
    objects = scene["objects"]
    scale = torch.tensor([width / scene["width"], height / scene["height"]]).repeat(2)
    shares = torch.zeros(len(objects), attributes + 1)
    for row, obj in zip(shares, objects, strict=True):
        row[[ATTRIBUTES.index(name) for name in obj["attributes"]]] = 1 / len(obj["attributes"])
    boxes = torch.tensor([obj["box"] for obj in objects], dtype=torch.float32).reshape(-1, 4) * scale
    return Truth(boxes, torch.tensor([CLASSES.index(obj["class"]) for obj in objects]), shares)


class SceneBatches(Dataset):
    """Batch i of a run: the network's input for scenes of one size, f32 [B,3,h,w], and their truths."""

    def __init__(self, recipe: Recipe, preprocess: Preprocess):
        self.recipe, self.preprocess = recipe, preprocess

    def __len__(self) -> int:
        return self.recipe.steps

    def __getitem__(self, step: int) -> tuple[Tensor, list[Truth]]:
        size = IMAGE_SIZES[step % len(IMAGE_SIZES)]
        to = frame(self.preprocess, *size)
        images, truths = [], []
        for index in range(step * self.recipe.batch, (step + 1) * self.recipe.batch):
            image, scene = make_scene(self.recipe.seed, index, size)
            images.append(network_input(self.preprocess, image, to))
            truths.append(truth_of(scene, *to.size))
        return torch.stack(images), truths


def _start_worker(_: int) -> None:
    import cv2

    os.nice(5)  # drawing must not slow down the optimiser
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def initialise(detector: Detector) -> None:
    """He initialisation of the convolutions, small normal weights for what predicts."""
    for module in detector.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    heads, rpn = detector.roi_heads.box_predictor, detector.proposal_generator.rpn_head
    for layer, spread in (
        (rpn.objectness_logits, 0.01),
        (rpn.anchor_deltas, 0.01),
        (heads.cls_score, 0.01),
        (heads.bbox_pred, 0.001),
        (heads.attr_score, 0.01),
    ):
        nn.init.normal_(layer.weight, std=spread)
        nn.init.zeros_(layer.bias)


class Losses(nn.Module):
    """The detector's training losses for a batch of one size."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.match_anchors = Matcher(0.7, 0.3, allow_low_quality_matches=True)
        self.match_rois = Matcher(0.5, 0.5, allow_low_quality_matches=False)
        self.sample_anchors = BalancedPositiveNegativeSampler(recipe.anchors_per_image, 0.5)
        self.sample_rois = BalancedPositiveNegativeSampler(recipe.rois_per_image, 0.5)

    def forward(self, detector: Detector, images: Tensor, truths: Sequence[Truth]) -> dict[str, Tensor]:
        feature = detector.backbone(images)
        logits, deltas = detector.proposal_generator.rpn_head(feature)
        size = (images.shape[2], images.shape[3])
        losses = self._proposal_losses(detector, logits, deltas, truths)
        with torch.no_grad():
            rois = [
                torch.cat((detector.proposal_generator.propose(*maps, size)[0], truth.boxes))
                for *maps, truth in zip(logits, deltas, truths, strict=True)
            ]
        return losses | self._region_losses(detector, feature, rois, truths)

    def _proposal_losses(self, detector, logits, deltas, truths) -> dict[str, Tensor]:
        batch, _, height, width = logits.shape
        anchors = detector.proposal_generator.anchors(height, width)
        labels, targets = [], []
        for truth in truths:
            match = self.match_anchors(box_iou(truth.boxes, anchors))
            labels.append(torch.where(match >= 0, 1, match + 1))  # the matcher's -1 is background, -2 is between
            targets.append(truth.boxes[match.clamp(min=0)])
        positive, negative = (torch.stack(masks).bool() for masks in self.sample_anchors(labels))
        chosen = positive | negative
        logits = logits.permute(0, 2, 3, 1).reshape(batch, -1)
        deltas = deltas.reshape(batch, -1, 4, height, width).permute(0, 3, 4, 1, 2).reshape(batch, -1, 4)
        target = encode_deltas(anchors.expand(batch, -1, 4)[positive], torch.stack(targets)[positive])
        return {
            "objectness": F.binary_cross_entropy_with_logits(logits[chosen], positive[chosen].float()),
            "anchor_box": F.smooth_l1_loss(deltas[positive], target, beta=1 / 9, reduction="sum") / chosen.sum(),
        }

    def _region_losses(self, detector, feature, rois, truths) -> dict[str, Tensor]:
        background = detector.config.num_classes
        matches = [self.match_rois(box_iou(t.boxes, boxes)) for t, boxes in zip(truths, rois, strict=True)]
        sampled = [
            torch.nonzero(positive | negative).squeeze(1)
            for positive, negative in zip(*self.sample_rois([(m >= 0).long() for m in matches]), strict=True)
        ]
        boxes = torch.cat([b[rows] for b, rows in zip(rois, sampled, strict=True)])
        match = torch.cat([m[rows] for m, rows in zip(matches, sampled, strict=True)])
        image = torch.cat([torch.full((len(rows),), float(i)) for i, rows in enumerate(sampled)])
        first = np.cumsum([0] + [len(t.classes) for t in truths])[:-1]
        owner = match.clamp(min=0) + torch.from_numpy(first)[image.long()]  # row in the batch's objects
        inside = match >= 0
        owner = owner[inside]
        labels = torch.full_like(match, background)
        labels[inside] = torch.cat([t.classes for t in truths])[owner]

        heads = detector.roi_heads
        features = heads.features(heads.pool(feature, torch.cat((image[:, None], boxes), dim=1)))
        class_logits, deltas = heads.box_predictor(features)
        attributes = heads.box_predictor.attribute_logits(features[inside], labels[inside])
        deltas = deltas.reshape(len(boxes), -1, 4)[inside, labels[inside]]
        target = encode_deltas(boxes[inside], torch.cat([t.boxes for t in truths])[owner], BOX_WEIGHTS)
        return {
            "class": F.cross_entropy(class_logits, labels),
            "box": F.smooth_l1_loss(deltas, target, reduction="sum") / len(boxes),
            "attribute": F.cross_entropy(attributes, torch.cat([t.attributes for t in truths])[owner]),
        }


def train(recipe: Recipe, preset: Preset = DEMO) -> Iterator[tuple[int, dict[str, float], Detector]]:
    """Run the recipe; yields (steps done, this step's losses, the detector being trained) after every step.

    Raises: ValueError for the seed of the held-out scenes, FloatingPointError when the loss is no longer finite.
    """
    if recipe.seed == HELD_OUT_SEED:
        raise ValueError(f"seed {HELD_OUT_SEED} is kept for evaluation: train with another")
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    detector = Detector(preset.architecture, norm=nn.BatchNorm2d)
    initialise(detector)
    detector.train().to(memory_format=torch.channels_last)  # a third faster on CPUs
    decayed = [p for p in detector.parameters() if p.ndim > 1]
    others = [p for p in detector.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, recipe))
    batches = DataLoader(
        SceneBatches(recipe, preset.preprocess),
        batch_size=None,
        num_workers=recipe.workers,
        worker_init_fn=_start_worker if recipe.workers else None,
    )
    losses_of = Losses(recipe)
    for step, (inputs, truths) in enumerate(batches, 1):
        losses = losses_of(detector, inputs.contiguous(memory_format=torch.channels_last), truths)
        total = sum(losses.values())
        if not torch.isfinite(total):
            raise FloatingPointError(f"the loss is {total.item()} at step {step}: lower the learning rate")
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(detector.parameters(), 10.0)
        optimiser.step()
        schedule.step()
        yield step, {name: value.item() for name, value in losses.items()}, detector


def _rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2


def save_weights(detector: Detector, path: Path, metadata: dict[str, str]) -> None:
    """Write float32 safetensors under the detector's tensor names; replaces `path` in one step."""
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().float().contiguous()
        for name, tensor in detector.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata)
    os.replace(partial, path)


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m extractor.train_demo", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="safetensors file, rewritten at every checkpoint")
    defaults = Recipe()
    for option in ("seed", "steps", "workers", "threads"):
        parser.add_argument(f"--{option}", type=int, default=getattr(defaults, option))
    options = vars(parser.parse_args(arguments))
    out = options.pop("out")
    recipe = replace(defaults, **options)
    started, recent = time.monotonic(), []
    for step, losses, detector in train(recipe):
        recent.append(losses)
        last = step == recipe.steps
        if step % 50 == 0 or last:
            means = {name: round(float(np.mean([r[name] for r in recent])), 4) for name in losses}
            print(json.dumps({"step": step, "seconds": round(time.monotonic() - started), **means}), flush=True)
            recent.clear()
        if step % recipe.checkpoint_every == 0 or last:
            metadata = {"preset": DEMO.name, "seed": str(recipe.seed), "step": str(step), "steps": str(recipe.steps)}
            save_weights(detector, out, metadata)


if __name__ == "__main__":
    main()
