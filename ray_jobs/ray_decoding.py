"""The decode stage on Ray: a task for each unit, on whatever CPU is free."""

from __future__ import annotations

import time
from dataclasses import dataclass

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, TaskCancelledError, WorkerCrashedError

from cache import Failure
from extractor.images import DecodePolicy

from .blame import Patience, Retries, Unit
from .ray_errors import raise_bug
from .ray_workers import Decoded, decode_unit

GRACE = 5.0  # seconds in which a task that is cancelled tells whether it had begun


@dataclass(eq=False)
class DecodedUnit:
    """A unit whose images wait for a model. `outcomes` as in `Decoded`; `images` is a reference to the images."""

    unit: Unit
    outcomes: list[Failure | bool]
    images: ray.ObjectRef


@dataclass(eq=False)
class _Call:
    unit: Unit
    images: ray.ObjectRef
    deadline: float
    expired: bool = False


class DecodeStage:
    """Decodes units, as many at a time as the caller submits.

    Args:
        policy: how image files are read.
        folder: where relative paths start.
        retries: is told what has to be done again.
        patience: for how long.
    """

    def __init__(self, policy: DecodePolicy, folder: str, retries: Retries, patience: Patience):
        self._policy, self._folder, self._retries, self._patience = policy, folder, retries, patience
        self._decode = ray.remote(num_cpus=1, num_returns=2, max_retries=0)(decode_unit)
        self._calls: dict[ray.ObjectRef, _Call] = {}
        self.seconds, self.images = 0.0, 0  # spent since the caller last looked

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def waiting_images(self) -> int:
        return sum(len(call.unit) for call in self._calls.values())

    def references(self) -> list[ray.ObjectRef]:
        """What to wait for."""
        return list(self._calls)

    def submit(self, unit: Unit) -> None:
        outcome, images = self._decode.remote(unit.tasks, self._policy, self._folder)
        self._calls[outcome] = _Call(unit, images, time.monotonic() + self._patience.of(unit))

    def collect(self, reference: ray.ObjectRef) -> DecodedUnit | tuple[Unit, Failure] | None:
        """What has become of a call that ended: a unit, the failure of its only image, or nothing yet."""
        call = self._calls.pop(reference, None)
        if call is None:
            return None
        unit = call.unit
        try:
            decoded: Decoded = ray.get(reference)
        except TaskCancelledError as error:  # it had not begun, so it is not to blame
            self._retries.redo(unit, error)
        except (WorkerCrashedError, OutOfMemoryError) as error:
            if call.expired:
                failure = self._retries.blame(unit, "timeout", "decoding did not end")
            else:
                why = "ran out of memory" if isinstance(error, OutOfMemoryError) else "died"
                failure = self._retries.blame(unit, "worker_crash", f"the process that decoded it {why}")
            return (unit, failure) if failure else None
        except RayTaskError as error:
            if not isinstance(error.cause, RayError):
                raise_bug(error)
            self._retries.redo(unit, error.cause)
        except RayError as error:
            self._retries.redo(unit, error)
        else:
            return self._cut(unit, decoded, call.images)
        return None

    def expire(self) -> list[tuple[Unit, Failure]]:
        """Stop what takes too long; failures of images that are to blame."""
        now, failed = time.monotonic(), []
        for reference, call in list(self._calls.items()):
            if now < call.deadline:
                continue
            if not call.expired:
                call.expired, call.deadline = True, now + GRACE
                ray.cancel(reference, force=True)
            else:  # a process that does not even die: its late result is nobody's
                del self._calls[reference]
                if failure := self._retries.blame(call.unit, "timeout", "decoding did not end"):
                    failed.append((call.unit, failure))
        return failed

    def _cut(self, unit: Unit, decoded: Decoded, images: ray.ObjectRef) -> DecodedUnit:
        """Put off the tasks that there was no room for."""
        count = len(decoded.outcomes)
        self._patience.learn(decoded.seconds, count)
        self.seconds += decoded.seconds
        self.images += count
        if count < len(unit):
            self._retries.waiting.appendleft(Unit(unit.tasks[count:]))
            unit = Unit(unit.tasks[:count], unit.blames, unit.requeues, unit.suspect)
        return DecodedUnit(unit, decoded.outcomes, images)
