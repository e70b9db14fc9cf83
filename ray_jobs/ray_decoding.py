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

GRACE = 10.0  # seconds in which a task that is cancelled ends


@dataclass(eq=False)
class DecodedUnit:
    """A unit whose images wait for a model. `outcomes` as in `Decoded`; `images` is a reference to the images."""

    unit: Unit
    outcomes: list[Failure | bool]
    images: ray.ObjectRef


@dataclass(eq=False)
class _Call:
    """A task that decodes: its `stream` of results, the reference to its `images`, and when it has to be done."""

    unit: Unit
    stream: ray.ObjectRefGenerator
    deadline: float | None = None  # once it has begun
    images: ray.ObjectRef | None = None
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
        self._decode = ray.remote(num_cpus=1, num_returns="streaming", max_retries=0)(decode_unit)
        self._calls: dict[ray.ObjectRefGenerator, _Call] = {}
        self.seconds, self.images = 0.0, 0  # spent since the caller last looked

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def waiting_images(self) -> int:
        return sum(len(call.unit) for call in self._calls.values())

    def streams(self) -> list[ray.ObjectRefGenerator]:
        """What to wait for."""
        return list(self._calls)

    def submit(self, unit: Unit) -> None:
        """Have a unit decoded as soon as a CPU is free."""
        stream = self._decode.remote(unit.tasks, self._policy, self._folder)
        self._calls[stream] = _Call(unit, stream)

    def collect(self, stream: ray.ObjectRefGenerator) -> DecodedUnit | tuple[Unit, Failure] | None:
        """What the next result of a stream comes to: a unit, the failure of its only image, or nothing yet."""
        call = self._calls[stream]
        try:
            decoded = self._advance(call)
            if decoded is None:
                return None
        except (WorkerCrashedError, OutOfMemoryError, TaskCancelledError) as error:
            why = "ran out of memory" if isinstance(error, OutOfMemoryError) else "died"
            return self._blame(call, "worker_crash", f"the process that decoded it {why}")
        except RayTaskError as error:
            if not isinstance(error.cause, RayError):
                raise_bug(error)
            self._retries.redo(call.unit, error.cause)
        except RayError as error:
            self._retries.redo(call.unit, error)
        else:
            del self._calls[stream]
            return self._cut(call, decoded)
        del self._calls[stream]
        return None

    def expire(self) -> list[tuple[Unit, Failure]]:
        """Stop what takes too long; failures of images that are to blame."""
        now, failed = time.monotonic(), []
        for stream, call in list(self._calls.items()):
            if call.deadline is None or now < call.deadline:
                continue
            if not call.expired:
                call.expired, call.deadline = True, now + GRACE
                ray.cancel(stream, force=True)
            else:  # a process that does not even die: its late result is nobody's
                failed += filter(None, [self._blame(call)])
        return failed

    def _advance(self, call: _Call) -> Decoded | None:
        """Take the next result. Raises: what ended the task."""
        reference = next(call.stream, None)
        if reference is None:  # it broke off, and the last reference tells why
            ray.get(call.images)
            raise WorkerCrashedError
        if call.deadline is None:
            ray.get(reference)
            call.deadline = time.monotonic() + self._patience.of(call.unit)
        elif call.images is None:
            call.images = reference
        else:
            return ray.get(reference)
        return None

    def _blame(self, call: _Call, kind: str = "", reason: str = "") -> tuple[Unit, Failure] | None:
        del self._calls[call.stream]
        if call.expired:
            kind, reason = "timeout", "decoding did not end"
        failure = self._retries.blame(call.unit, kind, reason)
        return (call.unit, failure) if failure else None

    def _cut(self, call: _Call, decoded: Decoded) -> DecodedUnit:
        """Put off the tasks that there was no room for."""
        unit, count = call.unit, len(decoded.outcomes)
        self._patience.learn(decoded.seconds, count)
        self.seconds += decoded.seconds
        self.images += count
        if count < len(unit):
            self._retries.waiting.appendleft(Unit(unit.tasks[count:]))
            unit = Unit(unit.tasks[:count], unit.blames, unit.requeues, unit.suspect)
        return DecodedUnit(unit, decoded.outcomes, call.images)
