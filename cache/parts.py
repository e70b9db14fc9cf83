"""A store at a URL whose shards several writers make, each on a disk of its own.

A writer owns the keys of one class of hashes. What it commits is in a small store of its own, a part, that ends with
its first shard. Sealed, this goes to the URL under a number that no other shard has, and only then the one process that
holds the lock of the URL registers it. What is not registered never was in the store: its keys are done again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from .destination import Destination
from .errors import StoreMismatch
from .files import TEMPORARY, disk_errors, replace_file
from .manifest import Manifest, Shard
from .publish import Publisher
from .regions import Failure, Regions
from .remote import RemoteFolder
from .shard import sealed
from .snapshot import load_index
from .states import WriteResult
from .writer import StoreWriter


def owner_of(key: str, writers: int) -> int:
    """Which of so many writers a key belongs to."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) % writers


@dataclass(frozen=True)
class Plan:
    """What all writers of a job have in common.

    Attributes:
        run: a name of this job, which others at the same URL do not have.
        url: where shards go.
        work: in which folder writers work, each on its own machine.
        choices: the arguments of `StoreWriter`.
    """

    run: str
    url: str
    work: str
    choices: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A shard that is at the URL, whole: its entry of the manifest, its feature dimension, and its index."""

    shard: Shard
    dim: int | None
    index: bytes


class PartWriter:
    """One of several writers. Not for use by two threads, but for `bring`.

    Args:
        plan: of the job.
        number: which writer it is.

    Attributes:
        part: the number of the part that is being written.
        earlier: key -> "record" or the failure: the states that the store has of the keys of the next `write`.

    Raises: DiskError. What a writer of an earlier job, or one that died, left on this disk is removed.
    """

    def __init__(self, plan: Plan, number: int):
        self._plan = plan
        self._writer: StoreWriter | None = None  # of the part, once there is something in it
        self.part = 0
        self.earlier: Mapping[str, str | Failure] = {}
        # of this URL alone, as writers of other jobs may work in the same folder
        self._common = Path(plan.work, f"writers{TEMPORARY}-{xxhash.xxh3_64_hexdigest(plan.url.encode())}")
        own = f"{plan.run}-{number}-"
        with disk_errors(self._common):
            self._common.mkdir(parents=True, exist_ok=True)
            for left in self._common.iterdir():
                if not left.name.startswith(f"{plan.run}-") or left.name.startswith(own):
                    shutil.rmtree(left, ignore_errors=True)
        self._folder = self._common / f"{own}{uuid.uuid4().hex[:8]}"

    def write(self, regions: Sequence[Regions], failures: Sequence[Failure], on_duplicate: str) -> WriteResult:
        """As that of `StoreWriter`, which knows no state of this store but those of the part. Raises: as that."""
        if self._writer is None:
            self._writer = StoreWriter(self._folder_of(self.part), **self._plan.choices)
        overriding = self.earlier if on_duplicate == "replace" else ()
        return self._writer.write(regions, failures, on_duplicate, overriding)

    def states(self, keys: Sequence[str]) -> list[None | str | Failure]:
        """What the part, else the store, holds for each key."""
        of_part = self._writer.states(keys) if self._writer else [None] * len(keys)
        return [self.earlier.get(key) if state is None else state for key, state in zip(keys, of_part, strict=True)]

    @property
    def full(self) -> bool:
        """Whether the part is to be ended."""
        return self._writer is not None and bool(self._writer.manifest.sealed)

    def end(self) -> bool:
        """Seal the part, and begin another with the next `write`; False when it holds nothing. Raises: DiskError."""
        if self._writer is None:
            return False
        self._writer.close()
        self._writer = None
        self.part += 1
        return True

    def bring(self, part: int, number: int) -> Part:
        """Copy the shard of a part that has ended to the URL, as shard `number`, and remove the part.

        Raises: StoreUnreachable, StoreDamaged, DiskError.
        """
        folder = self._folder_of(part)
        manifest = Manifest.load(folder)
        (made,) = manifest.sealed
        shard = replace(made, number=number)
        index = load_index(folder, made).renumbered(number)
        with disk_errors(folder):
            os.rename(folder / made.file, folder / shard.file)
        shard = sealed(folder, shard, index, int(made.checksum, 16))
        Publisher(folder, RemoteFolder(self._plan.url)).copy(shard)
        data = (folder / shard.index_file).read_bytes()
        shutil.rmtree(folder, ignore_errors=True)
        return Part(shard, manifest.dim, data)

    def close(self) -> None:
        """Remove what is left here."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are at work there
            self._common.rmdir()

    def _folder_of(self, part: int) -> Path:
        return self._folder / f"{part:05d}"


class Collector(StoreWriter):
    """The store as it is registered, for the one process that registers the parts of all writers.

    Takes the arguments of `StoreWriter`; the destination is needed. Nothing is written through it but parts. What a
    writer of another kind left in the working folder is brought to the URL first, and shards there that nobody
    registered are removed.
    """

    def __init__(self, path: str | os.PathLike, *, destination: Destination, **choices: Any):
        super().__init__(path, destination=destination, **choices)
        self._choices = choices
        try:
            self.seal()
            destination.finish(self.manifest)
            used = [*destination.begin(self.manifest), *(shard.number for shard in self.manifest.shards)]
        except BaseException:
            self._release()
            raise
        self._numbers = itertools.count(max(used, default=-1) + 1)

    def plan(self) -> Plan:
        """For the writers; after `provenance` is set."""
        target = self._destination
        choices = {**self._choices, "provenance": self.provenance}
        return Plan(uuid.uuid4().hex[:12], target.folder.url, str(target.path), choices)

    def next_number(self) -> int:
        """The number of a shard to be; never the same twice."""
        return next(self._numbers)

    def register(self, part: Part) -> None:
        """Let the store have a shard that is at the URL.

        Raises: StoreMismatch: another feature dimension; StoreDamaged: it is not whole there; StoreLocked: another job
            took the URL over; StoreUnreachable, DiskError.
        """
        self._check_usable()
        shard, dim = part.shard, self.manifest.dim if part.dim is None else part.dim
        if self.manifest.dim not in (None, dim):
            raise StoreMismatch(f"new features have dimension {dim}, those of {self.path} have {self.manifest.dim}")
        manifest = replace(self.manifest, dim=dim).with_shard(shard)
        replace_file(self.path / shard.index_file, part.index)
        self._destination.register(manifest, shard)
        self._save(manifest)
        self._merge(closing=False)

    def close(self) -> None:
        """Also removes what writers that died left at the URL."""
        if not self._closed:
            self._destination.sweep()
        super().close()
