"""Is all of a store there and as it was written? And one digest for what a store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import xxhash

from .errors import CorruptRecord, RoivaultError, StoreDamaged
from .fetched import fetched, manifest_of, named
from .index import FILE as MERGED_INDEX
from .index import Entry, Index
from .manifest import Manifest, Shard
from .probe import probe
from .published import Place
from .record import check_features
from .remote import RemoteFolder
from .shard import SealedShard, file_checksum
from .snapshot import check_value, load_index, load_merged
from .states import is_record
from .store import open_store
from .targets import Target, absolute, resolve_targets

_AHEAD = 64  # records that `digest` asks for at once


@dataclass
class Report:
    """What `verify` found.

    Attributes:
        problems: each damage, naming the file or the key.
        missing: ids that have no record.
        extra: number of keys with a record that are not among the ids.
        records, failures: keys that have one, each once; of a store that is too damaged to tell, what was checked.
        shards: shards that were checked.
        bytes: size of their files.
    """

    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: int = 0
    records: int = 0
    failures: int = 0
    shards: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is damaged and no id is missing."""
        return not self.problems and not self.missing


def verify(
    target: Target, ids: Iterable[str] | None = None, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Check everything: the manifest, size and checksum of every file, every index, every record and failure.

    An open shard is read in a process of its own, since a damaged one may kill it. The files of a published store are
    fetched for that, one shard after another.

    Args:
        target: as for `open_store`.
        ids: keys that shall have a record.
        progress: called with (bytes checked, bytes in all) after each shard.

    Raises:
        StoreNotFound: there is no store.
        StoreUnreachable, DiskError
    """
    report = Report()
    shards: list[tuple[Place, Manifest, Shard]] = []
    for place, chosen in resolve_targets(absolute(target)):
        try:
            manifest = manifest_of(place)
        except StoreDamaged as error:
            report.problems.append(str(error))
            continue
        held = manifest.sealed if isinstance(place, RemoteFolder) else manifest.shards
        shards += [(place, manifest, shard) for shard in held if chosen is None or shard.number in chosen]
        if chosen is None:
            with fetched(place, manifest.sealed, indexes_only=True) as path:
                report.problems += [named(problem, path, place) for problem in merged_problems(path, manifest)]
    total = sum(_size(place, shard) for place, _, shard in shards)
    for place, manifest, shard in shards:
        check = _check_sealed if shard.sealed else _check_open
        with fetched(place, [shard]) as path:
            report.problems += [named(problem, path, place) for problem in check(path, manifest, shard, report)]
        report.shards += 1
        report.bytes += _size(place, shard)
        if progress:
            progress(report.bytes, total)
    _count_states(target, report)
    if ids is not None:
        _compare_ids(target, set(ids), report)
    report.problems = list(dict.fromkeys(report.problems))  # a shard's index is looked at with the merged one, too
    return report


def _check_sealed(store: Path, manifest: Manifest, shard: Shard, report: Report) -> Iterator[str]:
    path = store / shard.file
    try:
        mapped = SealedShard(path, shard)
    except (StoreDamaged, FileNotFoundError) as error:
        yield str(error) if isinstance(error, StoreDamaged) else f"{path}: the shard is missing"
        mapped = None
    if mapped and f"{file_checksum(path):016x}" != shard.checksum:
        yield f"{path}: its checksum is not {shard.checksum}, which the manifest says"
    try:
        index = load_index(store, shard)
    except StoreDamaged as error:
        yield str(error)
        return
    if (index.records, index.failures) != (shard.records, shard.failures):
        yield (
            f"{store / shard.index_file}: it has {index.records} records and {index.failures} failures, the manifest "
            f"says {shard.records} and {shard.failures}"
        )
    for key, entry in index.states() if mapped else ():
        report.records += is_record(entry.flags)
        report.failures += not is_record(entry.flags)
        try:
            _check_value(key, mapped, shard.number, entry, manifest)
        except (CorruptRecord, StoreDamaged) as error:
            yield f"{path}: {error}"


def _check_value(key: bytes, shard: SealedShard, number: int, entry: Entry, manifest: Manifest) -> None:
    value = shard.value(entry)
    if entry.shard != number:
        raise CorruptRecord(key.decode(errors="replace"), f"its index says that it is in shard {entry.shard}")
    regions = check_value(key, value, entry)
    if regions is not None:
        check_features(regions, manifest.feature_dtype, manifest.dim)


def _check_open(store: Path, manifest: Manifest, shard: Shard, report: Report) -> Iterator[str]:
    path = store / shard.file
    if not path.exists():
        yield f"{path}: the open shard is missing"
        return
    found = probe(path, manifest.feature_dtype, manifest.dim)
    report.records += found.records
    report.failures += found.failures
    yield from (f"{path}: {problem}" for problem in found.problems)


def merged_problems(store: Path, manifest: Manifest) -> Iterator[str]:
    """index.idx must hold what the indexes of the shards it covers hold."""
    path = store / MERGED_INDEX
    try:
        merged = load_merged(store, manifest)
        if merged is None:
            if path.exists():
                yield f"{path}: it covers shards that the manifest does not have; delete it"
            return
        covered = [load_index(store, shard) for shard in manifest.sealed if shard.number in merged.covers]
    except StoreDamaged as error:
        yield str(error)
        return
    if any(one != other for one, other in zip_longest(merged.states(), Index.merge(covered).states())):
        yield f"{path}: it differs from the indexes of its shards; delete it"


def _count_states(target: Target, report: Report) -> None:
    """Overridden states and those that several stores have were checked as often as they are there."""
    try:
        counts = Counter(has_record for _, has_record in open_store(target, verify="never").states())
    except (RoivaultError, OSError):
        return  # the damage is told already
    report.records, report.failures = counts[True], counts[False]


def _compare_ids(target: Target, ids: set[str], report: Report) -> None:
    try:
        held = set(open_store(target).keys())
    except StoreDamaged as error:
        report.problems.append(f"the ids cannot be compared: {error}")
        return
    report.missing = sorted(ids - held)
    report.extra = len(held - ids)


def digest(target: Target) -> str:
    """xxh3-128, as hex, of all (key, record) pairs in the order of their keys.

    Stores that hold the same records have the same digest, however they are cut into shards and in whatever order they
    were written; failures do not count.

    Raises: StoreNotFound, StoreDamaged, CorruptRecord.
    """
    store = open_store(target, verify="always")
    total = xxhash.xxh3_128()
    keys = sorted(store.keys())
    for place, key in enumerate(keys):
        if place % _AHEAD == 0:
            store.prefetch(keys[place : place + _AHEAD])
        record = store.record(key)
        for part in (key.encode(), record):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return total.hexdigest()


def _size(place: Place, shard: Shard) -> int:
    if isinstance(place, RemoteFolder):
        return shard.bytes
    path = place / shard.file
    return path.stat().st_size if path.exists() else 0
