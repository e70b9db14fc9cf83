"""`roivault extract` with a model that is quick, needs no weights and misbehaves on request: run as a script by tests.

The environment says how: FAKE_SLEEP seconds per image; FAKE_CALLS a file to append the key of each image at the model
to; FAKE_HOLD a key at which the model waits until the file FAKE_GATE is there; FAKE_DIE, FAKE_RAISE and FAKE_FAIL keys
at which the process is killed, the model has a bug, or the image fails.
"""

import functools
import os
import signal
import sys
import time

import numpy as np

from cache import Failure, Regions
from extractor.images import decode


class FakeModel:
    """Regions from plain image statistics: the same for the same pixels, whatever the other images are."""

    def __init__(self, choices):
        self.policy = choices.policy
        self.device = "fake"
        self.precision = "float32" if choices.precision == "auto" else choices.precision

    def decode(self, source, key):
        return decode(source, key, self.policy)

    def extract(self, images, keys):
        return [self._regions(image, key) for image, key in zip(images, keys, strict=True)]

    def _regions(self, image, key):
        time.sleep(float(os.environ.get("FAKE_SLEEP", 0)))
        if calls := os.environ.get("FAKE_CALLS"):
            with open(calls, "a") as file:
                file.write(f"{key}\n")
        while key == os.environ.get("FAKE_HOLD") and not os.path.exists(os.environ["FAKE_GATE"]):
            time.sleep(0.01)
        if key == os.environ.get("FAKE_DIE"):
            os.kill(os.getpid(), signal.SIGKILL)
        if key == os.environ.get("FAKE_RAISE"):
            raise RuntimeError("a bug of the model")
        if key == os.environ.get("FAKE_FAIL"):
            return Failure(key, "out_of_memory", "as asked")
        h, w = image.height, image.width
        corners = image.rgb[[0, 0, -1, -1], [0, -1, 0, -1]].astype(np.float32)  # [4, 3]
        features = np.concatenate([corners, np.tile(image.rgb[h // 2, w // 2], (4, 1))], axis=1).astype(np.float32)
        boxes = np.array([[0, 0, w, h], [0, 0, w / 2, h], [0, 0, w, h / 2], [0, 0, w / 2, h / 2]], np.float32)
        return Regions(
            key=key,
            width=w,
            height=h,
            boxes=boxes,
            features=features,
            class_ids=np.arange(4, dtype=np.int32),
            class_probs=np.full(4, 0.5, np.float32),
            source_digest=image.source_digest,
        )


def main():
    import roivault
    from ray_jobs import extract

    extract.run_extract = functools.partial(extract.run_extract, load=FakeModel)
    return roivault.main(["extract", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
