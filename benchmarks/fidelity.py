"""What a lower precision costs in fidelity: the regions, features and labels it keeps of float32's.

    python benchmarks/fidelity.py                                   # the demo detector on drawn scenes
    python benchmarks/fidelity.py vg-r101 --weights FILE --images FOLDER --precision bfloat16 float16

`regions` is the share of float32's regions that have one of the lower precision with an IoU above 0.9; `cosine` the
features' mean cosine over those, `worst` the least; `classes` and `attributes` the share with the same label;
`float32 again` the images that overflowed and ran in float32. `given` is the features' mean cosine for the same boxes.
A precision that keeps at least 99 % of the regions and a mean cosine of 0.999 may be what `auto` stands for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torchvision.ops import box_iou

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cache import Regions  # noqa: E402
from extractor.devices import DTYPES  # noqa: E402
from extractor.extractor import Extractor, load_extractor  # noqa: E402

SUFFIXES = (".jpg", ".jpeg", ".png")


def images(folder: str | None, count: int) -> Iterator[np.ndarray | Path]:
    """Pictures of a folder, or drawn scenes that no training has seen."""
    if folder is None:
        from extractor.scenes import make_scene

        yield from (make_scene(seed=2_000_003, index=i)[0] for i in range(count))
    else:
        found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
        if not found:
            raise SystemExit(f"there are no pictures in {folder}")
        yield from found[:count]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[n] of rows [n,d]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)


def compare(reference: Regions, other: Regions) -> dict[str, np.ndarray]:
    """Per region of the reference: whether it was kept, and for those that were, what else was."""
    overlap = box_iou(torch.from_numpy(reference.boxes), torch.from_numpy(other.boxes)).numpy()
    best = overlap.max(axis=1, initial=0.0)
    kept = best > 0.9
    partner = overlap.argmax(axis=1)[kept] if overlap.shape[1] else np.zeros(0, int)
    result = {
        "regions": kept,
        "cosine": cosines(reference.features[kept], other.features[partner]),
        "classes": reference.class_ids[kept] == other.class_ids[partner],
    }
    if reference.attr_ids is not None:
        result["attributes"] = reference.attr_ids[kept] == other.attr_ids[partner]
    return result


def measure(reference: Extractor, lower: Extractor, pictures) -> dict[str, float]:
    """Means over all regions of all pictures, and the worst cosine."""
    parts: dict[str, list[np.ndarray]] = {}
    again = 0
    run = lower._run

    def counted(batch, chunk=None, network=None):
        nonlocal again
        again += network is not None and network is not lower._network
        return run(batch, chunk, network)

    lower._run = counted
    for picture in pictures:
        expected = reference([picture])[0]
        if not len(expected):
            continue
        for name, values in compare(expected, lower([picture])[0]).items():
            parts.setdefault(name, []).append(values)
        boxes = [expected.boxes + [0, 0, 1e-3, 1e-3]]
        given, again_given = (extractor([picture], boxes=boxes)[0].features for extractor in (reference, lower))
        parts.setdefault("given", []).append(cosines(given, again_given))
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    means = {name: float(values.mean()) for name, values in joined.items()}
    return means | {"worst": float(joined["cosine"].min(initial=1.0)), "float32 again": again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--weights")
    parser.add_argument("--images", help="folder of pictures; default drawn scenes")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", default=["bfloat16", "float16"], choices=sorted(DTYPES))
    options = parser.parse_args()
    reference = load_extractor(options.model, options.weights, options.device, "float32")
    print(f"{options.model} on {reference.device}, float32 beside")
    for precision in options.precision:
        lower = load_extractor(options.model, options.weights, options.device, precision)
        found = measure(reference, lower, images(options.images, options.count))
        print(f"  {precision:<9}", ", ".join(f"{name} {value:.4f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
