"""A few inputs of a job to show in its report: some of all that have records, the first failures of each kind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from cache import Failure

if TYPE_CHECKING:
    from .sources import Item


RECORDS_SHOWN = 9
FAILURES_SHOWN = 6  # of each kind


class Samples:
    """Bounded whatever the job's size. Records are drawn from all of them evenly; the same listing gives the same."""

    def __init__(self) -> None:
        self.records: list[Item] = []
        self.failures: dict[str, list[tuple[Failure, Item]]] = {}
        self._seen, self._random = 0, random.Random(0)

    def keep(self, item: Item) -> None:
        """Look at an input with a record."""
        self._seen += 1
        if len(self.records) < RECORDS_SHOWN:
            self.records.append(item)
        elif (place := int(self._random.random() * self._seen)) < RECORDS_SHOWN:
            self.records[place] = item

    def fail(self, failure: Failure, item: Item) -> None:
        """Look at an input without one."""
        shown = self.failures.setdefault(failure.kind, [])
        if len(shown) < FAILURES_SHOWN:
            shown.append((failure, item))

    def forget(self, item: Item) -> None:
        """An input has neither any more."""
        self.records = [kept for kept in self.records if kept is not item]
        for kind, shown in list(self.failures.items()):
            self.failures[kind] = [(failure, failed) for failure, failed in shown if failed is not item]
            if not self.failures[kind]:
                del self.failures[kind]
