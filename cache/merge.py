"""Several stores as one new store: their shards under new numbers, no record decoded or written anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .building import building
from .errors import DataError, StoreDamaged, StoreMismatch, UsageError
from .files import disk_errors, require_room
from .index import FILE as MERGED_INDEX
from .index import Entry, Index, hash_keys
from .lock import WriterLock
from .manifest import Manifest, Shard
from .opening import differences
from .remote import RemoteFolder
from .shard import SealedShard, file_checksum, sealed
from .snapshot import load_index
from .states import is_record
from .targets import Target, absolute, on_this_machine, resolve_targets
from .writer import StoreWriter

_NAMED = 5  # keys that an error shows


@dataclass
class MergeReport:
    """What became of some stores. Records of the sources = records + duplicates; so for failures and `overruled`.

    Attributes:
        sources: path, shards, records and failures of each.
        records, failures, shards: of the new store.
        duplicates: records that an earlier source has too.
        overruled: failures of keys that another source has a record or a later failure of.
        linked: shards that share their bytes with those of the source; the others are copies.
    """

    destination: str
    sources: list[dict[str, Any]]
    records: int = 0
    failures: int = 0
    shards: int = 0
    duplicates: int = 0
    overruled: int = 0
    linked: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Source:
    path: Path
    manifest: Manifest
    indexes: list[Index]  # of its shards
    states: Index


def merge(
    targets: Target,
    destination: Path,
    copy: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> MergeReport:
    """Make one store of several. The sources are only read; killed, it can be run again.

    A key has one state in the new store: the record of the source that has one, else the failure of the last source.

    Args:
        targets: store directories, shard files of one, or patterns; without open shards.
        destination: bears its name only once it is complete.
        copy: copy the shard files also where hard links to them can be made. Sealed shards never change, so that a link
            is as good, takes no room, and stays when the source is removed.
        on_progress: called with (bytes of shards done, bytes in all).

    Raises:
        StoreMismatch: the stores were made by other choices, or have different records of one key.
        StoreNotFound, StoreDamaged, UsageError, StoreLocked, DiskError
        DataError: a store has an open shard, or there is nothing to merge.
    """
    destination = Path(os.path.abspath(destination))
    sources = [_load(path, chosen) for path, chosen in _places(targets, destination)]
    manifest = common_manifest([(str(source.path), source.manifest) for source in sources])
    report = MergeReport(str(destination), [_described(source) for source in sources])
    shards = [
        (source, shard, index.renumbered(number))
        for number, (source, shard, index) in enumerate(
            (source, shard, index)
            for source in sources
            for shard, index in zip(source.manifest.shards, source.indexes, strict=True)
        )
    ]
    if not shards:
        raise DataError(f"there is nothing in {' and '.join(str(source.path) for source in sources)}: nothing was made")
    merged = Index.merge([index for _, _, index in shards])
    corrections = _settle(sources, merged, report)
    folder = next(parent for parent in destination.parents if parent.exists())
    copied = [shard.bytes for source, shard, _ in shards if copy or not _one_disk(source.path, folder)]
    require_room(folder, sum(copied) + 2 * sum(shard.index_bytes for _, shard, _ in shards))
    with building(destination) as target, disk_errors(target):
        target.mkdir()
        total, done, made = sum(shard.bytes for _, shard, _ in shards), 0, []
        for number, (source, shard, index) in enumerate(shards):
            new = replace(shard, number=number)
            report.linked += _bring(source.path / shard.file, target / new.file, shard, copy)
            made.append(sealed(target, new, index, int(shard.checksum, 16)))
            done += shard.bytes
            on_progress(done, total)
        replace(manifest, shards=tuple(made)).save(target)
        merged.covers = {shard.number: int(shard.index_checksum, 16) for shard in made}
        merged.save(target / MERGED_INDEX)
        if corrections:
            with StoreWriter(target, manifest.feature_dtype) as writer:
                writer.write_stored(corrections, manifest.dim, on_duplicate="replace")
        report.shards = len(Manifest.load(target).shards)
    return report


def common_manifest(manifests: Sequence[tuple[str, Manifest]]) -> Manifest:
    """One without shards for all that the named ones describe; a store that holds nothing fits every other.

    Raises: StoreMismatch: names every choice that differs.
    """
    held = [(name, replace(m, fingerprint=m.fingerprint or {})) for name, m in manifests if m.shards]
    for (one, a), (other, b) in combinations(held, 2):
        if found := differences(a, b, (f"in {one}", f"in {other}")):
            raise StoreMismatch(f"{one} and {other} were made by other choices: {'; '.join(found)}")
    chosen = [manifest for _, manifest in manifests if manifest.shards] or [manifest for _, manifest in manifests]
    return replace(
        chosen[0],
        dim=next((manifest.dim for manifest in chosen if manifest.dim is not None), None),
        vocabularies=next((manifest.vocabularies for manifest in chosen if manifest.vocabularies), {}),
        shards=(),
    )


# -- what goes in


def _places(targets: Target, destination: Path) -> Iterator[tuple[Path, frozenset[int] | None]]:
    """The stores, each once. Raises: UsageError, StoreNotFound."""
    named = absolute(targets)
    places = resolve_targets(named)
    real = [os.path.realpath(path) for path, _ in places if not isinstance(path, RemoteFolder)]
    if len(set(named)) < len(named) or len(set(real)) < len(real):
        twice = next((name for i, name in enumerate(named) if name in named[:i]), places[-1][0])
        raise UsageError(f"{twice} was given twice")
    for path, chosen in places:
        refuse_inside(destination, on_this_machine(path))
        yield path, chosen


def refuse_inside(destination: Path, source: Path) -> None:
    """Raises: UsageError: a store would be made within the one that it is made from."""
    inner, outer = os.path.realpath(destination), os.path.realpath(source)
    if inner == outer or inner.startswith(outer + os.sep):
        raise UsageError(f"{destination} lies in {source}, which it is to be made from: give a place outside of it")


def _load(path: Path, chosen: frozenset[int] | None) -> _Source:
    manifest = Manifest.load(path)
    if chosen is not None:
        manifest = manifest.only(chosen)
    if manifest.open:
        if os.access(path, os.W_OK):
            WriterLock(path).release()  # raises, and names who is writing
        raise DataError(
            f"{path} has an open shard, which a writer that was killed left: run its line again, or `roivault repair "
            f"{path}`, so that it is sealed"
        )
    indexes = [load_index(path, shard) for shard in manifest.shards]
    return _Source(path, manifest, indexes, Index.merge(indexes))


def _described(source: _Source) -> dict[str, Any]:
    states = source.states
    shards = len(source.manifest.shards)
    return {"path": str(source.path), "shards": shards, "records": states.records, "failures": states.failures}


# -- which state holds


def _settle(sources: Sequence[_Source], merged: Index, report: MergeReport) -> list[tuple[str, int, bytes]]:
    """Compare the keys that several sources have; returns the records that the order of the shards would not let hold.

    Such a record is of one source, while another one has a failure that was written to replace what came before.

    Raises: StoreMismatch: different records of one key.
    """
    corrections, conflicts = [], []
    for key, states in _shared(sources):
        records = [(source, entry) for source, entry in states if is_record(entry.flags)]
        source, wanted = records[0] if records else states[-1]
        report.duplicates += max(0, len(records) - 1)
        report.overruled += len(states) - len(records) - (not records)
        other = next((s for s, entry in records if entry.content != wanted.content), None)
        if other is not None:
            conflicts.append((key.decode(), source.path, other.path))
        elif records and not is_record(_find(merged, key).flags):
            corrections.append((key.decode(), 0, _value(source, key, wanted)))
    if conflicts:
        shown = ", ".join(f"{key!r} in {one} and {other}" for key, one, other in conflicts[:_NAMED])
        raise StoreMismatch(
            f"{len(conflicts):,} key{'s have' if len(conflicts) > 1 else ' has'} different records: {shown}"
            f"{', ...' if len(conflicts) > _NAMED else ''}; `roivault subset` makes a store without them"
        )
    report.records = merged.records + len(corrections)
    report.failures = merged.failures - len(corrections)
    return corrections


def _shared(sources: Sequence[_Source]) -> Iterator[tuple[bytes, list[tuple[_Source, Entry]]]]:
    """Every key that several sources have, with its states in their order."""
    hashes = np.concatenate([source.states.columns["hash"] for source in sources])
    owner = np.repeat(np.arange(len(sources)), [len(source.states) for source in sources])
    place = np.concatenate([np.arange(len(source.states)) for source in sources])
    order = np.lexsort((owner, hashes))
    same = hashes[order][1:] == hashes[order][:-1]
    in_run = np.concatenate([same, [False]]) | np.concatenate([[False], same]) if len(order) else same
    found: dict[bytes, list[tuple[_Source, Entry]]] = {}
    last = None
    for i in order[in_run].tolist():
        if hashes[i] != last:
            yield from ((key, states) for key, states in found.items() if len(states) > 1)
            found, last = {}, hashes[i]
        source = sources[owner[i]]
        position = int(place[i])
        found.setdefault(source.states.key(position), []).append((source, source.states.entry(position)))
    yield from ((key, states) for key, states in found.items() if len(states) > 1)


def _find(index: Index, key: bytes) -> Entry:
    return next(entry for _, entry in index.find([key], hash_keys([key])))


def _value(source: _Source, key: bytes, entry: Entry) -> bytes:
    """Raises: StoreDamaged."""
    shard = next(shard for shard in source.manifest.shards if shard.number == entry.shard)
    value = bytes(SealedShard.shared(source.path / shard.file, shard).value(entry))
    if xxhash.xxh3_64_intdigest(value) != entry.checksum:
        raise _damaged(source.path / shard.file)
    return value


# -- files


def _one_disk(path: Path, folder: Path) -> bool:
    return os.stat(path).st_dev == os.stat(folder).st_dev


def _bring(file: Path, target: Path, shard: Shard, copy: bool) -> bool:
    """Link or copy a shard file, and compare its checksum; returns whether it is a link. Raises: StoreDamaged."""
    try:
        linked = not copy and _link(file, target)
        if not linked:
            shutil.copyfile(file, target)
    except FileNotFoundError:
        raise StoreDamaged(file, "the shard is missing", "run `roivault repair` on its store") from None
    if os.path.getsize(target) != shard.bytes or f"{file_checksum(target):016x}" != shard.checksum:
        raise _damaged(file)
    return linked


def _link(file: Path, target: Path) -> bool:
    try:
        os.link(file, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False  # another disk, or one without hard links
    return True


def _damaged(file: Path) -> StoreDamaged:
    return StoreDamaged(file, "it is not what its manifest has the checksum of", "run `roivault repair` on its store")
