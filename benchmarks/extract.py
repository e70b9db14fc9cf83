"""Where the time of an image goes: this extractor beside the way the published systems run the same network.

    python benchmarks/extract.py vg-r101 [--image FILE] [--precision bfloat16] [--rounds 3] [--threads 2]
    python benchmarks/extract.py vg-r101 --peer PATH     # the system itself, from its own tree, see peers.py

Without --peer, the published way is rebuilt from the same modules: norms apart from their convolutions, maps plane by
plane, all RoIs in one pass, boxes of every class decoded, one suppression per class. Weights are random, of the right
size: times do not depend on them, apart from the number of RoIs. Rounds alternate between the ways, so that both meet
the same weather; the table shows the median CPU seconds (all threads) and wall seconds of each stage. Below it stands
the roofline: the multiplications that our way needs, and how long a plain product of large matrices takes for so many.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
from torchvision.ops import nms

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from peers import load_peer  # noqa: E402

from extractor.boxes import clip_boxes, decode_deltas, exclusive  # noqa: E402
from extractor.devices import DTYPES, exact_numerics  # noqa: E402
from extractor.networks import make_fast, network_class  # noqa: E402
from extractor.preprocess import frame, network_input  # noqa: E402
from extractor.presets import get_preset  # noqa: E402
from extractor.ranking import rank_by_survival, shared_boxes  # noqa: E402
from extractor.roi_heads import BOX_WEIGHTS  # noqa: E402
from extractor.selection import select, select_max_class  # noqa: E402


class Clock:
    """CPU and wall seconds per stage, one number a round."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu[name].append(time.process_time() - cpu)
        self.wall[name].append(time.perf_counter() - wall)


class Work(Clock):
    """Multiplications per stage instead of seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[str, int] = {}
        fused = torch.ops.mkldnn._convolution_pointwise, torch.ops.mkldnn._convolution_pointwise_
        self._counter = FlopCounterMode(
            display=False,
            custom_mapping={
                fused[0]: lambda x, w, *args, out_shape, **kwargs: conv_flop_count(x, w, out_shape),
                fused[1]: lambda y, x, w, *args, out_shape, **kwargs: conv_flop_count(x, w, out_shape),
            },
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with self._counter:
            yield
        self.done[name] = self._counter.get_total_flops() // 2


def multiplications_per_second(precision: str, side: int = 2048) -> float:
    """Of a product of square matrices, per CPU second."""
    a, b = (torch.rand(side, side).to(DTYPES[precision]) for _ in range(2))
    seconds = []
    for _ in range(4):
        start = time.process_time()
        torch.mm(a, b)
        seconds.append(time.process_time() - start)
    return side**3 / min(seconds)


def random_network(architecture, seed: int = 0) -> nn.Module:
    """The network with weights that keep its activations within bounds, and its many proposals at their anchors."""
    generator = torch.Generator().manual_seed(seed)
    network = network_class(architecture)(architecture).eval().requires_grad_(False)
    constant = getattr(network, "default_tensors", dict)()
    for name, tensor in network.state_dict().items():
        if tensor.ndim >= 2 and name not in constant:
            small = {"anchor_deltas": 1e-3, "bbox_pred": 1e-3, "stem": 1 / 64, "conv3": 0.3}
            gain = next((value for part, value in small.items() if part in name), 1.0)
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * gain * (2.0 / tensor[0].numel()) ** 0.5)
    return network


def c4_ours(network, preset, rgb: np.ndarray, clock: Clock) -> int:
    with clock.stage("preprocess"):
        to = frame(preset.preprocess, *rgb.shape[:2])
        images = network_input(preset.preprocess, rgb, to)[None].contiguous(memory_format=torch.channels_last)
    with clock.stage("backbone"):
        feature, size = network.map(images)
    with clock.stage("proposals"):
        (rois,) = network.propose(feature, size, *(to.scale[:1] if getattr(network, "needs_frames", False) else ()))
    with clock.stage("RoI head"):
        found = network.describe(feature, rois, size)
    with clock.stage("selection"):
        select(preset.selection, found, to).of(found, getattr(network, "complete", None))
    return len(rois)


def c4_published(network, preset, rgb: np.ndarray, clock: Clock) -> int:
    with clock.stage("preprocess"):
        to = frame(preset.preprocess, *rgb.shape[:2])
        images = network_input(preset.preprocess, rgb, to)[None]
    with clock.stage("backbone"):
        feature = network.backbone(images)
    with clock.stage("proposals"):
        logits, deltas = network.proposal_generator.rpn_head(feature)
        rois, _ = network.proposal_generator.propose(logits[0], deltas[0], to.size)
    with clock.stage("RoI head"):
        heads = network.roi_heads
        features = heads.features(heads.pool(feature, torch.cat((rois.new_zeros(len(rois), 1), rois), dim=1)))
        class_logits, deltas = heads.box_predictor(features)
        heads.box_predictor.attribute_logits(features, class_logits.argmax(dim=1)).softmax(dim=1)
    with clock.stage("selection"):
        classes = network.config.num_classes
        probs, ids = class_logits.softmax(dim=1)[:, :-1].max(dim=1)
        rows = torch.arange(len(rois))
        for threshold in preset.selection.thresholds:
            every = rois[:, None].expand(-1, classes, -1).reshape(-1, 4)
            boxes = clip_boxes(decode_deltas(every, deltas.reshape(-1, 4), BOX_WEIGHTS), *to.size)
            boxes = boxes.reshape(len(rois), classes, 4)[rows, ids]
            if len(nms(boxes, probs, threshold)) >= preset.selection.max_regions:
                break
        select_max_class(boxes, probs, preset.selection)
    return len(rois)


def fpn_ours(network, preset, rgb: np.ndarray, clock: Clock) -> int:
    images, to = _padded(preset, rgb, clock, torch.channels_last)
    with clock.stage("backbone"):
        pyramid = network.backbone(images.to(network.backbone.fpn_output2.weight.dtype))
    rois = _pyramid_proposals(network, pyramid, to, clock)
    with clock.stage("RoI head"):
        found = network.describe([level.float() for level in pyramid[:-1]], rois)
    with clock.stage("selection"):
        select(preset.selection, found, to)
    return len(rois)


def fpn_published(network, preset, rgb: np.ndarray, clock: Clock) -> int:
    images, to = _padded(preset, rgb, clock, torch.contiguous_format)
    with clock.stage("backbone"):
        pyramid = network.backbone(images)
    rois = _pyramid_proposals(network, pyramid, to, clock)
    with clock.stage("RoI head"):
        heads = network.roi_heads
        _, fc7 = heads["box_head"](network.pool(pyramid[:-1], rois))
        scores = heads["box_predictor"](fc7).softmax(dim=1)[:, 1:]
    with clock.stage("selection"):
        boxes = exclusive(rois * rois.new_tensor(to.to_original))
        best = torch.zeros(len(rois))
        for c in range(scores.shape[1]):
            keep = nms(boxes, scores[:, c], preset.selection.threshold)
            best[keep] = torch.where(scores[keep, c] > best[keep], scores[keep, c], best[keep])
        order = best.argsort(descending=True)[: preset.selection.max_regions]
    rows, _ = rank_by_survival(scores, shared_boxes(boxes, preset.selection.threshold), preset.selection.max_regions)
    if not torch.equal(best[rows], best[order[: len(rows)]]):
        raise SystemExit("the two selections differ")
    return len(rois)


def _padded(preset, rgb: np.ndarray, clock: Clock, layout: torch.memory_format) -> tuple[Tensor, object]:
    from extractor.fpn import MULTIPLE

    with clock.stage("preprocess"):
        to = frame(preset.preprocess, *rgb.shape[:2])
        height, width = to.size
        image = network_input(preset.preprocess, rgb, to)[None]
        image = torch.nn.functional.pad(image, (0, -width % MULTIPLE, 0, -height % MULTIPLE))
    return image.contiguous(memory_format=layout), to


def _pyramid_proposals(network, pyramid: list[Tensor], to, clock: Clock) -> Tensor:
    with clock.stage("proposals"):
        maps = [network.proposal_generator.rpn_head(level) for level in pyramid]
        return network.proposal_generator.propose([m[0][0] for m in maps], [m[1][0] for m in maps], to.size)[0]


WAYS: dict[str, tuple[Callable, Callable | None]] = {
    "extractor.bua_caffe:BuaCaffeDetector": (c4_ours, None),
    "extractor.bua_d2:BuaD2Detector": (c4_ours, None),
    "extractor.detector:Detector": (c4_ours, c4_published),
    "extractor.fpn_detector:FPNDetector": (fpn_ours, fpn_published),
    "extractor.vinvl:VinVLDetector": (c4_ours, None),
}


def compare(
    model: str, rgb: np.ndarray, precision: str, rounds: int, peer: str | None
) -> tuple[Clock, Clock, int, Work]:
    """Clocks of this extractor and of the published way, the number of RoIs, and the work of this extractor."""
    preset = get_preset(model)
    ours, rebuilt = WAYS[preset.architecture.network]
    plain = random_network(preset.architecture)
    if not peer and rebuilt is None:
        raise SystemExit(f"the published way of {model} is not rebuilt here: give its system with --peer")
    if peer:
        published = load_peer(model, Path(peer), plain.state_dict())
    else:
        published = partial(rebuilt, plain, preset)
    fast = make_fast(random_network(preset.architecture), torch.device("cpu"), precision)
    clocks = Clock(), Clock()
    with torch.inference_mode(), exact_numerics():
        for i in range(rounds + 1):
            mine, other = clocks if i else (Clock(), Clock())  # the first round warms up
            count = ours(fast, preset, rgb, mine)
            published(rgb, other)
        ours(fast, preset, rgb, work := Work())
    return *clocks, count, work


def table(ours: Clock, published: Clock) -> None:
    print(f"{'stage':<12}{'CPU s':>9}{'published':>11}{'ratio':>8}{'wall s':>9}{'published':>11}")
    totals = np.zeros(4)
    for name in published.cpu:
        columns = [statistics.median(c[name]) for c in (ours.cpu, published.cpu, ours.wall, published.wall)]
        totals += columns
        _line(name, *columns)
    _line("total", *totals)


def roofline(ours: Clock, work: Work, precision: str) -> None:
    """How much of each stage's time its multiplications would take at the rate of large matrices."""
    with exact_numerics():
        rate = multiplications_per_second(precision)
    print(f"a product of large matrices does {rate / 1e9:.0f} billion multiplications per CPU second; ours takes")
    for name, count in work.done.items():
        if count:
            spent = statistics.median(ours.cpu[name])
            print(f"{name:<12}{count / 1e9:>9.1f} billion: at least {count / rate:.3f} of its {spent:.3f} CPU s")


def _line(name: str, cpu: float, cpu_published: float, wall: float, wall_published: float) -> None:
    ratio = cpu / max(cpu_published, 1e-9)
    print(f"{name:<12}{cpu:>9.3f}{cpu_published:>11.3f}{ratio:>8.3f}{wall:>9.3f}{wall_published:>11.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--image", help="default: noise of 480x640 pixels")
    parser.add_argument("--precision", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="tree of the published system")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.image:
        from extractor.images import decode

        rgb = decode(options.image, options.image).rgb
    else:
        blocks = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        rgb = np.kron(blocks, np.ones((10, 10, 1), np.uint8))
    ours, published, rois, work = compare(options.model, rgb, options.precision, options.rounds, options.peer)
    print(f"{options.model}, {rgb.shape[1]}x{rgb.shape[0]} pixels, {rois} RoIs, {options.threads} threads, ", end="")
    print(f"{options.precision} beside float32, median of {options.rounds}")
    table(ours, published)
    roofline(ours, work, options.precision)


if __name__ == "__main__":
    main()
