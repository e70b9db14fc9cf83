"""The local engine: decode threads, the model in the calling thread, one transaction per unit.

Images stay in listing order. At most a few units are decoded ahead, and no more than a byte budget allows, so memory
does not depend on how many images there are nor on how large they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

import xxhash

from cache import Failure, Regions, RoivaultError
from extractor.images import DecodedImage, DecodePolicy, ImageError, pixel_count

from .budget import ByteBudget
from .signals import Drain
from .sources import Item
from .work import UNIT, Task, Work

UNITS_AHEAD = 3
DECODE_BYTES_PER_PIXEL = 20  # at the peak of decoding, for the hungriest formats (WebP, 16-bit PNG)
MOST_DECODE_THREADS = 16


class Model(Protocol):
    """The part of an extractor that a job uses."""

    device: Any
    precision: str
    policy: DecodePolicy

    def decode(self, source: bytes, key: str) -> DecodedImage: ...

    def extract(self, images: Sequence[DecodedImage], keys: Sequence[str]) -> list[Regions | Failure]: ...


@dataclass(frozen=True)
class Decoded:
    """A task on its way to the model. `image` is a Failure if there is none, None if it is the one of the record."""

    task: Task
    image: DecodedImage | Failure | None
    nbytes: int  # that it holds of the budget
    seconds: float  # that decoding took


class LocalEngine:
    """Runs a job on this machine.

    Args:
        model: the extractor.
        threads: decode threads.
        drain: once requested, the run ends after the unit at the model.
    """

    def __init__(self, model: Model, threads: int, drain: Drain):
        self._model, self._drain = model, drain
        self._threads = min(threads, MOST_DECODE_THREADS)
        self._budget = ByteBudget()

    def run(self, work: Work) -> None:
        """Process every task of `work`. Raises what the model or the store raises; what was committed stays."""
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        try:
            for unit in self._units(work, pool):
                self._finish(unit, work)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._budget.close()

    def _units(self, work: Work, pool: ThreadPoolExecutor) -> Iterator[list[Decoded]]:
        """Decoded tasks in listing order, up to UNIT at a time; fewer at the end or when the byte budget is used up."""
        ahead: deque[Future[Decoded]] = deque()
        unit: list[Decoded] = []
        tickets = 0
        while not self._drain.requested:
            while len(ahead) < UNITS_AHEAD * UNIT and (task := work.take(wait=not ahead and not unit)):
                ahead.append(pool.submit(self._decode, task, tickets))
                tickets += 1
            if len(unit) < UNIT and ahead and ahead[0].done():
                unit.append(ahead.popleft().result())
            elif unit and (len(unit) == UNIT or not ahead or self._budget.exhausted):
                yield unit
                unit = []
            elif ahead:
                wait([ahead[0]], timeout=0.05)
            elif work.exhausted:
                return

    def _decode(self, task: Task, ticket: int) -> Decoded:
        """Read and decode one image, in a decode thread; what goes wrong becomes its failure."""
        item, policy, need = task.item, self._model.policy, 0
        begin = time.perf_counter()
        image = _attempt(item, lambda: item.locator.read(item.key, policy))
        if isinstance(image, bytes):
            if task.digest is not None and xxhash.xxh3_128_digest(image) == task.digest:
                image = None
            elif (pixels := pixel_count(image)) <= policy.max_pixels:
                need = len(image) + DECODE_BYTES_PER_PIXEL * pixels
        seconds = time.perf_counter() - begin
        if not self._budget.acquire(ticket, need):
            return Decoded(task, None, 0, seconds)  # the run has ended: nobody waits for this image
        begin = time.perf_counter()
        if isinstance(data := image, bytes):
            image = _attempt(item, lambda: self._model.decode(data, item.key))
        held = image.rgb.nbytes if isinstance(image, DecodedImage) else 0
        self._budget.release(need - held)
        return Decoded(task, image, held, seconds + time.perf_counter() - begin)

    def _finish(self, unit: list[Decoded], work: Work) -> None:
        """Run the model over a unit and commit it."""
        work.tally.spend("decode", sum(d.seconds for d in unit) / self._threads, len(unit))
        rows = [i for i, decoded in enumerate(unit) if isinstance(decoded.image, DecodedImage)]
        results = [decoded.image for decoded in unit]  # failures and unchanged ones stay as they are
        if rows:
            begin = time.perf_counter()
            extracted = self._extract([unit[i] for i in rows])
            work.tally.spend("model", time.perf_counter() - begin, len(rows))
            for i, result in zip(rows, extracted, strict=True):
                source = unit[i].task.item.source
                results[i] = replace(result, source=source) if isinstance(result, Failure) else result
        work.commit([decoded.task for decoded in unit], results)
        self._budget.release(sum(decoded.nbytes for decoded in unit))

    def _extract(self, decoded: list[Decoded]) -> list[Regions | Failure]:
        try:
            return self._model.extract([d.image for d in decoded], [d.task.item.key for d in decoded])
        except RoivaultError:
            raise
        except Exception as error:
            where = ", ".join(f"{d.task.item.key!r} ({d.task.item.source})" for d in decoded)
            raise RuntimeError(f"the model stopped with {type(error).__name__}: {error}, in one of {where}") from error


def _attempt(item: Item, step: Callable[[], Any]) -> Any:
    """What `step` returns, or the failure of the item that it ended in."""
    try:
        return step()
    except ImageError as error:
        return replace(error.failure(), source=item.source)
    except MemoryError:
        message = "there was not enough memory to decode it; free some, then run again with --retry-failed"
        return Failure(item.key, "out_of_memory", message, item.source)
    except Exception as error:  # a codec's bug must not cost the other images
        return Failure(item.key, "decode_error", f"{type(error).__name__}: {error}", item.source)
