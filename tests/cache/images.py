"""Made-up records that resemble a detector's: features of a network, boxes in the image, ids with names."""

import numpy as np

from cache import Regions

WORDS = {
    "classes": [f"thing {i}" for i in range(30)],
    "attributes": ["red", "blue", "tall", "green", "orange", "wet", "old", "light"],
}
SIZES = ((640, 480), (333, 500), (480, 640), (500, 375))


def image(index, n=12, d=64, weights=0, key=None):
    """What the network `weights` makes of picture `index`: the same regions under any weights, other features."""
    rng = np.random.default_rng(index)
    width, height = SIZES[index % len(SIZES)]
    corner = rng.uniform(0, 0.6, (n, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0.1, 0.4, (n, 2))], axis=1) * ([width, height] * 2)
    scene = rng.normal(size=32)
    hidden = np.concatenate([rng.normal(size=(n, 32)), np.tile(scene, (n, 1))], axis=1)
    layer = np.random.default_rng([99, weights]).normal(size=(64, d))
    scores = np.sort(rng.uniform(0.2, 1, n))[::-1]
    return Regions(
        key or f"{index:06d}", width, height, boxes.astype(np.float32),
        np.maximum(hidden @ layer, 0).astype(np.float32), scores=scores.astype(np.float32),
        class_ids=rng.integers(1, 25, n), class_probs=scores, attr_ids=rng.integers(0, 8, n), attr_probs=scores,
    )  # fmt: skip


def pick(regions, rows):
    """Some rows of a record."""
    arrays = {name: array[rows] for name, array in regions.arrays().items()}
    return regions.replace(**arrays)


def shaken(regions, amount, seed=0):
    """The same network on slightly other pixels: other features, and boxes that move a little."""
    rng = np.random.default_rng([seed, len(regions)])
    features = regions.features + rng.normal(size=regions.features.shape) * amount * regions.features.std()
    boxes = regions.boxes + rng.uniform(-3, 3, regions.boxes.shape).astype(np.float32)
    return regions.replace(features=np.maximum(features, 0).astype(np.float32), boxes=np.maximum(boxes, 0))
