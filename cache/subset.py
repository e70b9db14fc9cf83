"""A new store of some keys of others: their records byte for byte, nothing decoded or encoded anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from .building import building
from .errors import CorruptRecord, DataError, StoreDamaged, UsageError, require_one_of
from .files import require_room
from .manifest import Manifest
from .merge import common_manifest, refuse_inside
from .record import check_features, decode
from .states import FAILURE
from .store import RegionStore, open_store
from .targets import Target
from .writer import Made, Stored, StoreWriter

MISSING = ("error", "skip")
_BATCH = 256
_BATCH_BYTES = 64 << 20


@dataclass
class SubsetReport:
    """What became of the keys that were asked for: records + failures + missing + damaged.

    Attributes:
        made: whether the destination was made: not if keys are missing, unless those are to be skipped.
        missing: keys of which the source has neither a record nor a failure.
        damaged: key -> why its record could not be read; a job would do it again.
    """

    source: str
    destination: str
    made: bool = False
    records: int = 0
    failures: int = 0
    missing: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 0 if self.made and not self.damaged else 65

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


def subset(
    target: Target,
    destination: Path,
    keys: Iterable[str] | None = None,
    pattern: str | None = None,
    missing: str = "error",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> SubsetReport:
    """Make a store of some keys of another; the source is only read. Killed, it can be run again.

    Args:
        target: as for `open_store`; several stores must have been made by the same choices.
        keys: in the order that their records shall have on the disk; one that occurs twice counts once.
        pattern: keys that match it, such as "a/*". With neither, all keys: what was overridden or damaged stays behind.
        missing: "error" makes nothing if the source lacks a key, "skip" goes on without it.
        on_progress: called with (bytes written, bytes in all, as far as that is known).

    Raises:
        DataError: none of the keys has anything that can be used.
        StoreNotFound, StoreDamaged, StoreMismatch, UsageError, DiskError, StoreLocked
    """
    require_one_of("missing", missing, MISSING)
    if keys is not None and pattern is not None:
        raise UsageError("keys and a pattern were given: give one of them")
    destination = Path(os.path.abspath(destination))
    store = open_store(target, verify="always")
    names = list(map(str, store.paths))
    for path in store.paths:
        if isinstance(path, Path):
            refuse_inside(destination, path)
    manifest = common_manifest(list(zip(names, store.manifests, strict=True)))
    report = SubsetReport(", ".join(names), str(destination))
    chosen, report.missing = _choose(store, keys, pattern)
    if report.missing and missing == "error":
        return report
    if not chosen:
        what = "no state" if pattern is None and keys is None else "none of the keys that were asked for"
        raise DataError(f"{report.source} has {what}; {destination} was not made")
    expected = _expected_bytes(store, len(chosen))
    require_room(destination.parent, expected)
    with building(destination) as place:
        with StoreWriter(place, manifest.feature_dtype, manifest.fingerprint, manifest.vocabularies) as writer:
            done = 0
            for states, made in _batches(store, chosen, manifest, report):
                result = writer.write_stored(states, manifest.dim, made)
                report.records += result.written
                report.failures += result.failed
                done += sum(len(value) for _, _, value in states)
                on_progress(done, max(done, expected))
        if not done:
            why = next(iter(report.damaged.values()))
            raise DataError(f"none of {len(chosen):,} keys can be read ({why}); {destination} was not made")
    report.made = True
    return report


def _choose(store: RegionStore, keys: Iterable[str] | None, pattern: str | None) -> tuple[list[str], list[str]]:
    """Keys that the store has a state of, and those that it has not."""
    if keys is None:
        return [key for key, _ in store.states() if pattern is None or fnmatchcase(key, pattern)], []
    asked = list(dict.fromkeys(keys))
    held = list(store.holds(asked))
    split = {True: [], False: []}
    for key, state in zip(asked, held, strict=True):
        split[state is not None].append(key)
    return split[True], split[False]


def _expected_bytes(store: RegionStore, count: int) -> int:
    """The size of so many states, if they are as large as the others."""
    shards = [shard for manifest in store.manifests for shard in manifest.sealed]
    states = sum(shard.records + shard.failures for shard in shards)
    return sum(shard.bytes for shard in shards) * min(count, states) // max(1, states)


def _batches(
    store: RegionStore, keys: Sequence[str], manifest: Manifest, report: SubsetReport
) -> Iterator[tuple[list[Stored], list[Made]]]:
    """States that fit in memory, records first, and where and with what they were made."""
    provenance = [{shard.number: shard.provenance for shard in held.shards} for held in store.manifests]
    keys = iter(keys)
    while chunk := list(islice(keys, _BATCH)):
        states: list[Stored] = []
        made: list[Made] = []
        size = 0
        for key, (part, shard, _) in zip(chunk, store.places(chunk).tolist(), strict=True):
            try:
                is_record, value = store.stored(key)
                if is_record:
                    check_features(decode(key, value, check=False), manifest.feature_dtype, manifest.dim)
            except (CorruptRecord, StoreDamaged) as error:
                report.damaged[key] = str(error)
                continue
            states.append((key, 0 if is_record else FAILURE, bytes(value)))
            made += [entry for entry in provenance[part].get(shard, ()) if entry not in made] if part >= 0 else []
            size += len(value)
            if size >= _BATCH_BYTES:
                yield sorted(states, key=_failures_last), made
                states, made, size = [], [], 0
        if states:
            yield sorted(states, key=_failures_last), made


def _failures_last(state: Stored) -> int:
    return state[1]
