"""Reading sealed records that are not in memory.

A mapped file faults its pages in one after another, each time with a guess at what may be wanted next. Where the data
does not fit in memory that guess is wrong: there a few threads read whole records, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from .index import Entry
from .published import RemoteShard, read_remote
from .shard import SealedShard
from .threads import threads

THREADS = 8
_CGROUPS = Path("/sys/fs/cgroup")


def read_values(places: Sequence[tuple[SealedShard | RemoteShard, Entry]]) -> list[memoryview]:
    """The bytes of values of sealed shards, each in memory of its own.

    Raises:
        StoreDamaged: an index points behind the end of its shard.
        DiskError, StoreUnreachable
    """
    if len(places) == 1:
        shard, entry = places[0]
        return [shard.read(entry)]
    far = [i for i, (shard, _) in enumerate(places) if isinstance(shard, RemoteShard)]
    if far:
        near = [i for i, (shard, _) in enumerate(places) if not isinstance(shard, RemoteShard)]
        values = dict(zip(far, read_remote([places[i] for i in far]), strict=True))
        values |= zip(near, read_values([places[i] for i in near]), strict=True)
        return [values[i] for i in range(len(places))]
    order = sorted(range(len(places)), key=lambda i: (str(places[i][0].path), places[i][1].offset))
    share = max(1, -(-len(order) // THREADS))
    parts = [order[start : start + share] for start in range(0, len(order), share)]

    def read(part: list[int]) -> list[tuple[int, memoryview]]:
        return [(i, shard.read(entry)) for i in part for shard, entry in [places[i]]]

    values = dict(chain.from_iterable(threads("read", THREADS).map(read, parts)))
    return [values[i] for i in range(len(places))]


def available_memory() -> int | None:
    """Bytes that this process could fill with pages of files or its own; None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    limits = [left for group in _own_groups() if (left := _left_in(group)) is not None]
    return min([available, *limits])


def _own_groups() -> list[Path]:
    """Directories of the control group of this process and of those above it."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    own = next((Path(line[3:].lstrip("/")) for line in lines if line.startswith("0::")), Path())
    return [_CGROUPS / group for group in (own, *own.parents)]


def _left_in(group: Path) -> int | None:
    """Bytes that a control group may still use, what it holds as page cache included; None: it has no limit."""
    try:
        limit, used = (int((group / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        return limit - used + int(held["file"])
    except (OSError, KeyError, ValueError):
        return None  # "max" is no number either
