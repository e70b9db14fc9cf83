"""The local engine: decode threads, the model in the calling thread, commits beside it, one transaction per unit.

Images stay in listing order. At most a few units are decoded ahead, and no more than a byte budget allows, so memory
does not depend on how many images there are nor on how large they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property

from cache import Failure, Regions
from extractor.images import DecodedImage

from .budget import ByteBudget
from .committer import Committer
from .decoding import attempt, fetch, needed
from .model import Choices, Load, Model, run_model
from .signals import Drain
from .work import UNIT, Task, Work

UNITS_AHEAD = 3
MOST_DECODE_THREADS = 16


@dataclass(frozen=True)
class Decoded:
    """A task on its way to the model. `image` is a Failure if there is none, None if it is the one of the record."""

    task: Task
    image: DecodedImage | Failure | None
    nbytes: int  # that it holds of the budget
    seconds: float  # that decoding took


class LocalEngine:
    """Runs a job on this machine, with one model.

    Args:
        load: makes the model, when there is something for it to do.
        choices: how records are made; `threads` of it is the number of decode threads, too.
        drain: once requested, the run ends after the unit at the model.
    """

    name = "local"

    def __init__(self, load: Load, choices: Choices, drain: Drain):
        self._load, self._choices, self._drain = load, choices, drain
        self._threads = min(choices.threads, MOST_DECODE_THREADS)
        self._budget = ByteBudget()

    @cached_property
    def _model(self) -> Model:
        return self._load(self._choices)

    def prepare(self) -> None:
        """Nothing: whether there is need of the model is not known yet."""

    def precision(self) -> str:
        """What `auto` means on the device."""
        return self._model.precision

    def device(self) -> str:
        """Where the model is."""
        return str(self._model.device)

    def run(self, work: Work) -> None:
        """Process every task of `work`. Raises what the model or the store raises; what was committed stays."""
        work.tally.devices = [self.device()]
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        try:
            with Committer(work) as committer:
                for unit in self._units(work, pool):
                    self._finish(unit, work, committer)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._budget.close()

    def close(self) -> None:
        """Nothing outlives the run."""

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
                decoded = sum(future.done() for future in ahead)
                work.tally.queues = {"decode": len(ahead) - decoded, "model": decoded}
                yield unit
                unit = []
            elif ahead:
                wait([ahead[0]], timeout=0.05)
            elif work.exhausted:
                return

    def _decode(self, task: Task, ticket: int) -> Decoded:
        """Read and decode one image, in a decode thread; what goes wrong becomes its failure."""
        item, policy = task.item, self._model.policy
        begin = time.perf_counter()
        image = fetch(task, policy)
        need = needed(image, policy)
        seconds = time.perf_counter() - begin
        if not self._budget.acquire(ticket, need):
            return Decoded(task, None, 0, seconds)  # the run has ended: nobody waits for this image
        begin = time.perf_counter()
        if isinstance(data := image, bytes):
            image = attempt(item, lambda: self._model.decode(data, item.key))
        held = image.rgb.nbytes if isinstance(image, DecodedImage) else 0
        self._budget.release(need - held)
        return Decoded(task, image, held, seconds + time.perf_counter() - begin)

    def _finish(self, unit: list[Decoded], work: Work, committer: Committer) -> None:
        """Run the model over a unit and hand it over to be committed."""
        work.tally.spend("decode", sum(d.seconds for d in unit) / self._threads, len(unit))
        shown = [d for d in unit if isinstance(d.image, DecodedImage)]
        results: list[Regions | Failure | None] = [d.image for d in unit]  # failures and unchanged ones stay
        if shown:
            begin = time.perf_counter()
            items = [d.task.item for d in shown]
            keys, sources = [item.key for item in items], [item.source for item in items]
            extracted = iter(run_model(self._model, [d.image for d in shown], keys, sources))
            work.tally.spend("model", time.perf_counter() - begin, len(shown))
            results = [next(extracted) if isinstance(d.image, DecodedImage) else d.image for d in unit]
        committer.put([decoded.task for decoded in unit], results)
        self._budget.release(sum(decoded.nbytes for decoded in unit))
