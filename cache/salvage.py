"""What of one shard can still be read, and a shard made anew of that."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from . import environment as lmdb_file
from .environment import LOCK_SUFFIX, Environment, View
from .errors import CorruptRecord, StoreDamaged
from .files import TEMPORARY, disk_errors, sync_file
from .index import Entry, Index
from .keys import MAX_KEY_BYTES
from .pages import PageContents, read_pages
from .record import MAGIC, MIN_BYTES
from .snapshot import check_value
from .states import FAILURE, REPLACED

_BATCH_BYTES = 64 << 20


@dataclass
class Salvage:
    """What is left of a shard.

    Attributes:
        states: key -> where its value lies; each was read and is what was written.
        broken: key -> the entry of a state that cannot be read; its checksum is 0 if no index has it.
        unnamed: number of states whose key cannot be read; None where there may be some, and nothing tells how many.
        whole: the file is sound, and so is every state in it.
        unmarked: keys of states that may lack the mark of overriding earlier shards.
        features: key of a record -> dtype and dimension of its features.
    """

    states: dict[bytes, Entry] = field(default_factory=dict)
    broken: dict[bytes, Entry] = field(default_factory=dict)
    unnamed: int | None = 0
    whole: bool = False
    unmarked: set[bytes] = field(default_factory=set)
    features: dict[bytes, tuple[str, int]] = field(default_factory=dict)

    def refuse_features(self, wanted: tuple[str, int]) -> None:
        """Count the records with other features as broken."""
        for key, found in self.features.items():
            if found != wanted and key in self.states:
                self.broken[key] = self.states.pop(key)
                self.whole = False

    def drop(self, key: bytes) -> None:
        """Leave out a state, if it is here."""
        if self.states.pop(key, None):
            self.whole = False

    def index(self) -> Index:
        """Of the states: equal to what sealing the shard makes of them."""
        return Index.build(sorted(self.states.items(), key=lambda state: (state[1].flags & FAILURE, state[0])))


def examine(
    path: Path,
    number: int,
    known: Mapping[bytes, Entry],
    complete: bool,
    expected: int | None,
    current: bool = True,
) -> Salvage:
    """Read every state of a shard's file, which may be missing.

    Args:
        known: what indexes say of the shard.
        complete: the file is as it was sealed and `known` is its own index, so that nothing else is to be looked for.
        current: `known` was made when the shard was sealed, not before it was written to for the last time.
        expected: how many states the shard should have at least, if that is known.

    Raises: DiskError.
    """
    result = Salvage(whole=complete)
    scanned_whole = False
    if not path.is_file():
        result.broken.update(known)
    else:
        with disk_errors(path), open(path, "rb") as file:
            if not complete:
                contents = read_pages(path)
                scanned_whole = contents.whole
                _take_nodes(file.fileno(), number, contents, result)
                if {b"records", b"failures"} <= set(contents.entries):
                    expected = max(expected or 0, contents.entries[b"records"] + contents.entries[b"failures"])
            for key, entry in known.items():
                scanned = scanned_whole and key in result.states
                if current or not scanned:  # else the index may be older than the file
                    _take_known(file.fileno(), key, entry._replace(shard=number), result, scanned)
    result.whole &= not result.broken
    named = len(result.states) + len(result.broken)
    if expected is not None:
        result.unnamed = max(0, expected - named)
    elif not result.whole:
        result.unnamed = None
    return result


def _take_nodes(fd: int, number: int, contents: PageContents, result: Salvage) -> None:
    """States as the pages of a file have them. Of a key with several, some of which are old, none is taken."""
    result.whole = contents.whole
    marked = {node.key for node in contents.nodes if not node.length}
    versions: dict[bytes, dict[tuple, tuple[Entry, tuple[str, int] | None]]] = {}
    for node in contents.nodes:
        if not node.length or not 0 < len(node.key) <= MAX_KEY_BYTES:
            continue
        value = _read(fd, node.offset, node.length)
        failure = FAILURE if value[:1] == b"{" or node.length < MIN_BYTES else 0
        flags = failure | (REPLACED if node.key in marked else 0)
        entry = Entry(number, node.offset, node.length, xxhash.xxh3_64_intdigest(value), flags)
        try:
            features = _check(node.key, value, entry)
        except CorruptRecord:
            if contents.certain or value[:4] == MAGIC or value[:1] == b"{":
                result.broken[node.key] = entry._replace(checksum=0)
        else:
            versions.setdefault(node.key, {})[entry.flags, entry.length, entry.checksum] = entry, features
    for key, found in versions.items():
        entry, features = next(iter(found.values()))
        if len(found) > 1:
            result.broken[key] = entry._replace(checksum=0)
        else:
            _take(result, key, entry, features)
    if not contents.certain or len(marked) < contents.entries.get(b"replaced", len(marked) + 1):
        result.unmarked = {*result.states, *result.broken} - marked


def _take_known(fd: int, key: bytes, entry: Entry, result: Salvage, scanned: bool) -> None:
    """A state that an index names; if it is not there, that which was found by scanning a sound file counts."""
    try:
        features = _check(key, _read(fd, entry.offset, entry.length), entry)
    except CorruptRecord:
        if not scanned:
            result.states.pop(key, None)
            result.broken[key] = entry
    else:
        _take(result, key, entry, features)


def _take(result: Salvage, key: bytes, entry: Entry, features: tuple[str, int] | None) -> None:
    result.broken.pop(key, None)
    result.unmarked.discard(key)
    result.states[key] = entry
    if features:
        result.features[key] = features


def _check(key: bytes, value: bytes, entry: Entry) -> tuple[str, int] | None:
    """Dtype and dimension of the features of a record. Raises: CorruptRecord."""
    regions = check_value(key, value, entry)
    return None if regions is None else (str(regions.features.dtype), regions.features.shape[1])


def _read(fd: int, offset: int, length: int) -> bytes:
    """The bytes, as many as there are; none where the disk fails."""
    try:
        return os.pread(fd, min(length, max(0, os.fstat(fd).st_size - offset)), offset)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EIO, errno.EINVAL):
            raise
        return b""


def remake(source: Path, shard_file: Path, number: int, salvage: Salvage) -> tuple[Path, Salvage]:
    """Write the states of a shard into a new file, which is complete and on the disk, but does not bear its name yet.

    Returns: its path, and what is in it.

    Raises: DiskError; StoreDamaged: the states are no longer what they were when they were read.
    """
    path = shard_file.with_name(shard_file.name + TEMPORARY)
    lock = Path(f"{path}{LOCK_SUFFIX}")
    size = sum(entry.length for entry in salvage.states.values())
    with disk_errors(path):
        for leftover in (path, lock):
            leftover.unlink(missing_ok=True)
        lmdb_file.create(path)
        environment = Environment.acquire(path, writable=True, map_size=size + size // 4 + lmdb_file.MAP_SLACK)
        try:
            with open(source, "rb") as file:
                for batch in _batches(salvage.states):
                    _write(environment, file.fileno(), batch)
            data_size = environment.data_size()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            environment.release(writable=True)
            lock.unlink(missing_ok=True)
        sync_file(path, data_size)
    made = examine(path, number, {}, complete=False, expected=None)
    if not made.whole or _contents(made) != _contents(salvage):
        raise StoreDamaged(source, "its states changed while they were copied", "run `roivault repair` again")
    return path, made


def _batches(states: Mapping[bytes, Entry]) -> Iterator[list[tuple[bytes, Entry]]]:
    """In the order of the file, so many at a time as fit in memory."""
    batch, size = [], 0
    for key, entry in sorted(states.items(), key=lambda state: state[1].offset):
        batch.append((key, entry))
        size += entry.length
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _write(environment: Environment, fd: int, batch: list[tuple[bytes, Entry]]) -> None:
    def fill(view: View) -> None:
        for key, entry in batch:
            view.put(key, entry.flags, _read(fd, entry.offset, entry.length))

    environment.write(fill)


def _contents(salvage: Salvage) -> dict[bytes, tuple[int, int, int]]:
    return {key: (*entry.content, entry.flags) for key, entry in salvage.states.items()}
