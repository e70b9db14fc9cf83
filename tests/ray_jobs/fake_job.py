"""`roivault extract` with a model that is quick, needs no weights and misbehaves on request: run as a script by tests.

The environment of the job, wherever its models are, says how: FAKE_SLEEP seconds per image; FAKE_CALLS a file to append
the key of each image at the model to; FAKE_PIDS and FAKE_GPUS files for the process of each model and the GPUs it sees;
FAKE_HOLD a key at which the model waits until the file FAKE_GATE is there; FAKE_DIE, FAKE_RAISE and FAKE_FAIL keys at
which the process is killed, the model has a bug, or the image fails; FAKE_ONCE a file that marks that the process was
killed, and is not again; FAKE_LOAD what loading a model ends in: "die", or the text of an error.
"""

import functools
import os
import signal
import sys
import time

import numpy as np

from cache import Failure, Regions, WeightsError
from extractor.images import decode


class FakeModel:
    """Regions from plain image statistics: the same for the same pixels, whatever the other images are."""

    def __init__(self, choices, settings=None):
        self._settings = os.environ if settings is None else settings
        if pids := self._settings.get("FAKE_PIDS"):
            with open(pids, "a") as file:
                file.write(f"{os.getpid()}\n")
        if gpus := self._settings.get("FAKE_GPUS"):
            with open(gpus, "a") as file:
                file.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        if (end := self._settings.get("FAKE_LOAD")) == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif end:
            raise WeightsError(end)
        self.policy = choices.policy
        self.device = "fake"
        self.precision = "float32" if choices.precision == "auto" else choices.precision

    def decode(self, source, key):
        return decode(source, key, self.policy)

    def extract(self, images, keys):
        return [self._regions(image, key) for image, key in zip(images, keys, strict=True)]

    def _regions(self, image, key):
        get = self._settings.get
        time.sleep(float(get("FAKE_SLEEP", 0)))
        if calls := get("FAKE_CALLS"):
            with open(calls, "a") as file:
                file.write(f"{key}\n")
        while key == get("FAKE_HOLD") and not os.path.exists(get("FAKE_GATE")):
            time.sleep(0.01)
        if key == get("FAKE_DIE"):
            die(get("FAKE_ONCE"))
        if key == get("FAKE_RAISE"):
            raise RuntimeError("a bug of the model")
        if key == get("FAKE_FAIL"):
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


def die(once=None):
    """Kill this process; with a file `once`, only if that is not there yet."""
    if once is None or not os.path.exists(once):
        if once is not None:
            open(once, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    import roivault
    from ray_jobs import extract

    settings = {name: value for name, value in os.environ.items() if name.startswith("FAKE_")}
    extract.run_extract = functools.partial(extract.run_extract, load=functools.partial(FakeModel, settings=settings))
    return roivault.main(["extract", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
