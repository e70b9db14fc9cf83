"""Records of a feature server: as many as fit in one request, several requests at once, and some ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from .client import ServedFolder
from .client_disk import DiskCache
from .errors import RoivaultError
from .manifest import Manifest
from .ranges import Range, RangeReader


class ServedReader(RangeReader):
    """Reads ranges of shards, each as a record of its own: nothing between two of them comes along, or is copied.

    Args:
        manifest: of the store, whose shards the ranges are of.
    """

    def __init__(self, folder: ServedFolder, manifest: Manifest):
        super().__init__(folder)
        self._numbers = {shard.file: shard.number for shard in manifest.sealed}
        self._checksums = {shard.file: shard.checksum for shard in manifest.sealed}
        self._disk = DiskCache.of_environment()

    def read_ahead(self, wanted: Sequence[Range]) -> None:
        try:
            super().read_ahead(wanted)
        except RoivaultError:
            pass  # the server did not tell its limits; `read` will find out why

    def _groups(self, wanted: Sequence[Range]) -> Iterator[list[Range]]:
        by_place = {(self._numbers[one.name], one.start, one.length): one for one in wanted}
        for part in self._folder.requests(list(by_place)):
            yield [by_place[place] for place in part]

    def _read(self, group: list[Range], stop: threading.Event) -> dict[Range, memoryview]:
        found = self._on_disk(group)
        left = [one for one in group if one not in found]
        places = [(self._numbers[one.name], one.start, one.length) for one in left]
        fetched = dict(zip(left, self._folder.records_at(places, stop), strict=True))
        if self._disk:
            self._disk.put({self._name(one): value for one, value in fetched.items()})
        return found | fetched

    def read_anew(self, one: Range) -> memoryview:
        """What is not what its index tells of, once more, and not from the disk."""
        if self._disk:
            self._disk.remove(self._name(one))
        return self.read([one])[0]

    def _on_disk(self, group: Sequence[Range]) -> dict[Range, memoryview]:
        if self._disk is None:
            return {}
        values = ((one, self._disk.get(self._name(one), one.length)) for one in group)
        return {one: value for one, value in values if value is not None}

    def _name(self, one: Range) -> str:
        """The same at every server that has the shard."""
        return f"{self._checksums[one.name]}-{one.start:x}-{one.length:x}"

    def _own(self, data: memoryview, offset: int) -> memoryview:
        """Each record has memory of its own already."""
        return data
