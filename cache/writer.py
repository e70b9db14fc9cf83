"""Writing a store: a batch of results is one transaction of the open shard, and full shards are sealed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import environment as lmdb_file
from .environment import LOCK_SUFFIX, Environment
from .errors import InvalidRegions, StoreDamaged, StoreMismatch, StoreNotFound, UsageError
from .files import TEMPORARY, disk_errors
from .index import FAILURE, FILE, REPLACED, Index
from .lock import WriterLock
from .manifest import FILE as MANIFEST
from .manifest import Manifest, Shard
from .record import decode, encode
from .regions import FEATURE_DTYPES, Failure, Regions
from .shard import seal
from .snapshot import MAX_KEY_BYTES, Snapshot, decode_failure, encode_failure, encode_key, load_merged

ON_DUPLICATE = ("error", "drop", "replace")


@dataclass(frozen=True)
class WriteResult:
    """What became of the results of one `write`: each of them is counted once.

    Attributes:
        written: records stored.
        duplicates: results that were not stored, because the store or this call holds another state of their key.
        failed: failures stored, those of features that the store's dtype cannot hold included.
    """

    written: int
    duplicates: int
    failed: int


class StoreWriter:
    """The one writer of a store directory. Creates it, or continues it, an unsealed shard of a killed writer included.

    A context manager: a normal end seals what is open, an exception leaves it open for the next writer.

    Args:
        path: the store directory, NAME.roi by convention.
        feature_dtype: float16, float32 or bfloat16.
        fingerprint: every choice that may change a byte of a record; None takes what the store has.
        vocabularies: {"classes": [...], "attributes": [...]}; None takes what the store has.
        provenance: where and with what the records are made; recorded for each shard, never refused.
        shard_size: bytes at which a shard is sealed and the next begun.

    Raises:
        StoreMismatch: the store was made with another fingerprint, feature dtype or vocabulary; names each difference.
        StoreLocked: another writer has it.
        StoreDamaged, DiskError, UsageError
    """

    def __init__(
        self,
        path: str | os.PathLike,
        feature_dtype: str = "float16",
        fingerprint: dict[str, Any] | None = None,
        vocabularies: dict[str, Sequence[str]] | None = None,
        provenance: dict[str, Any] | None = None,
        shard_size: int = 8 * 2**30,
    ):
        if feature_dtype not in FEATURE_DTYPES:
            raise UsageError(f"feature dtype {feature_dtype!r} is not one of {', '.join(FEATURE_DTYPES)}")
        if shard_size < 1:
            raise UsageError(f"the shard size must be positive, not {shard_size}")
        self.path = Path(path)
        self.provenance, self.shard_size = provenance, shard_size
        self._pid = os.getpid()
        self._environment: Environment | None = None
        self._snapshot: Snapshot | None = None
        self._closed = False
        _make_directory(self.path)
        self._lock = WriterLock(self.path)
        try:
            self._manifest = self._continue_or_create(feature_dtype, fingerprint, vocabularies)
            self._sweep()
            self._recover()
        except BaseException:
            self._release()
            raise

    def write(
        self, regions: Sequence[Regions], failures: Sequence[Failure] = (), on_duplicate: str = "error"
    ) -> WriteResult:
        """Commit results, all or none of them, in one transaction.

        A record is a duplicate when the state of its key is a record already. A feature that overflows the store's
        dtype makes a failure (value_range) of its key. A new failure takes the place of an older one.

        Args:
            on_duplicate: "error" refuses the whole call; "drop" keeps the record the store has, also against a
                failure; "replace" lets the new state win and marks it, so that it overrides earlier shards.

        Raises:
            InvalidRegions: a value that must not be stored, or a duplicate with "error"; nothing is written.
            StoreMismatch: another feature dimension than the store's; nothing is written.
            DiskError: nothing is written; the writer may go on when there is room again.
        """
        self._check_usable()
        if on_duplicate not in ON_DUPLICATE:
            raise UsageError(f"on_duplicate {on_duplicate!r} is not one of {', '.join(ON_DUPLICATE)}")
        results = self._encode(regions, failures)
        states, result = self._decide(results, on_duplicate)
        if states:
            self._begin_shard(next((r.features.shape[1] for r in regions), None))

            def fill(view):
                for key, (flags, value) in states.items():
                    view.put(encode_key(key), flags, value)

            self._environment.write(fill)
            if self._environment.data_size() >= self.shard_size:
                self.seal()
        return result

    def states(self, keys: Sequence[str]) -> list[None | str | Failure]:
        """What the store holds for each key: None, "record" or the failure."""
        self._check_usable()
        states = self._current().states(keys)
        return [
            state and ("record" if state.is_record else decode_failure(key, self._current().value(state)))
            for key, state in zip(keys, states)
        ]

    def source_digest(self, key: str) -> bytes | None:
        """The digest of the image that the key's record was made from; None without a record or a digest."""
        self._check_usable()
        (state,) = self._current().states([key])
        if state is None or not state.is_record:
            return None
        return decode(key, self._current().value(state), check=False).source_digest

    def seal(self) -> None:
        """Make the open shard immutable; without one, or with an empty one, do nothing. Raises: DiskError."""
        self._check_usable()
        if self._environment is None:
            return
        (shard,) = self._manifest.open
        with self._environment.read() as view:
            empty = not len(view)
        if empty:
            self._discard(shard)
            return
        sealed, index = seal(self.path, shard, self._environment)
        self._forget_environment()
        self._save(self._manifest.with_shard(sealed))
        self._merge(index)

    def close(self) -> None:
        """Seal what is open, bring index.idx up to date and let the next writer in. Raises: DiskError."""
        if self._closed:
            return
        try:
            self.seal()
            self._merge()
        finally:
            self._release()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

    # -- opening

    def _continue_or_create(
        self, feature_dtype: str, fingerprint: dict | None, vocabularies: dict[str, Sequence[str]] | None
    ) -> Manifest:
        wanted = Manifest(
            feature_dtype,
            fingerprint=fingerprint,
            vocabularies={name: list(words) for name, words in (vocabularies or {}).items()},
        )
        try:
            existing = Manifest.load(self.path)
        except StoreNotFound:
            existing = None
        if existing is None or not existing.shards:  # a store that holds nothing fits every job
            wanted.save(self.path)
            return wanted
        differences = _differences(existing, wanted)
        if differences:
            raise StoreMismatch(
                f"{self.path} was made by other choices: {'; '.join(differences)}; write to another store, or use the "
                "choices of this one"
            )
        if wanted.vocabularies and not existing.vocabularies:
            existing = replace(existing, vocabularies=wanted.vocabularies)
            existing.save(self.path)
        return existing

    def _sweep(self) -> None:
        """Remove what a killed writer left half done; nothing of it was ever part of the store."""
        listed = {f"{shard.name}{suffix}" for shard in self._manifest.shards for suffix in (".lmdb", ".idx")}
        listed |= {shard.file + LOCK_SUFFIX for shard in self._manifest.open}
        for path in self.path.iterdir():
            if TEMPORARY in path.suffixes or path.name.endswith(TEMPORARY + LOCK_SUFFIX):
                path.unlink()
            elif path.name.startswith("shard-") and path.name not in listed:
                if path.suffix == ".lmdb" and not _is_empty_shard(path):
                    raise StoreDamaged(path, "the manifest does not know this shard", "move it out of the store")
                path.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Go on with the shard that a former writer left open; finish its seal when that had begun."""
        for shard in self._manifest.open:
            path = self.path / shard.file
            try:
                self._environment = Environment.acquire(path, writable=True, map_size=self._map_size())
            except FileNotFoundError:
                raise StoreDamaged(path, "the open shard is missing") from None
            if (self.path / shard.index_file).exists() or self._environment.data_size() >= self.shard_size:
                self.seal()

    # -- writing

    def _encode(self, regions: Sequence[Regions], failures: Sequence[Failure]) -> list[tuple[str, int, bytes]]:
        """(key, flags, value) of every result, records first."""
        records, failed = [], list(failures)
        for item in regions:
            _check_key(item.key)
            item.validate()
            if self._manifest.dim not in (None, item.features.shape[1]) or (
                item.features.shape[1] != regions[0].features.shape[1]
            ):
                dim = self._manifest.dim if self._manifest.dim is not None else regions[0].features.shape[1]
                raise StoreMismatch(
                    f"{item.key!r} has {item.features.shape[1]}-dimensional features, {self.path} has {dim}"
                )
            try:
                records.append((item.key, 0, encode(item, self._manifest.feature_dtype)))
            except InvalidRegions as error:
                failed.append(Failure(item.key, error.kind, error.message))
        for failure in failed:
            _check_key(failure.key)
        return records + [(failure.key, FAILURE, encode_failure(failure)) for failure in failed]

    def _decide(
        self, results: list[tuple[str, int, bytes]], on_duplicate: str
    ) -> tuple[dict[str, tuple[int, bytes]], WriteResult]:
        """The states to commit, by the state rule. Within one call a record beats a failure."""
        keys = list(dict.fromkeys(key for key, _, _ in results))
        before = dict(zip(keys, self._current().states(keys, values=False)))
        states: dict[str, tuple[int, bytes]] = {}
        for key, flags, value in results:
            stored, new = before[key], states.get(key)
            is_duplicate = (stored and stored.is_record) or (new and not new[0] & FAILURE)
            if is_duplicate and on_duplicate == "error":
                raise InvalidRegions(key, "duplicate_key", f"{self.path} or this call has a record of this key already")
            if is_duplicate and on_duplicate == "drop":
                continue
            if new and not new[0] & FAILURE and flags & FAILURE:
                continue
            states[key] = (flags | REPLACED if stored and on_duplicate == "replace" else flags), value
        failed = sum(bool(flags & FAILURE) for flags, _ in states.values())
        return states, WriteResult(len(states) - failed, len(results) - len(states), failed)

    def _begin_shard(self, dim: int | None) -> None:
        """Have an open shard that the manifest knows, before anything is committed to it."""
        manifest = self._manifest if self._manifest.dim is not None else replace(self._manifest, dim=dim)
        if self._environment is None:
            number = max((shard.number for shard in manifest.shards), default=-1) + 1
            shard = Shard(number)
            lmdb_file.create(self.path / shard.file)
        else:
            (shard,) = manifest.open
        if self.provenance and self.provenance not in shard.provenance:
            shard = replace(shard, provenance=(*shard.provenance, self.provenance))
        self._save(manifest.with_shard(shard))
        if self._environment is None:
            self._environment = Environment.acquire(self.path / shard.file, True, self._map_size())

    def _map_size(self) -> int:
        """Address space costs nothing, growing the map runs a transaction again."""
        return self.shard_size + self.shard_size // 4 + lmdb_file.MAP_SLACK

    def _discard(self, shard: Shard) -> None:
        """Remove an open shard that holds nothing."""
        self._save(self._manifest.without_shard(shard.number))
        self._environment.retire()
        self._forget_environment()
        for name in (shard.file, shard.file + LOCK_SUFFIX):
            (self.path / name).unlink(missing_ok=True)

    # -- state

    def _save(self, manifest: Manifest) -> None:
        if manifest != self._manifest:
            manifest.save(self.path)
            self._manifest = manifest
            self._forget_snapshot()

    def _merge(self, newest: Index | None = None) -> None:
        """Renew index.idx: at close when it lacks a shard, before that when it lacks more than a quarter."""
        indexes = self._current().indexes
        merged = load_merged(self.path, self._manifest)
        unmerged = sum(len(index) for index in indexes) - (len(merged) if merged else 0)
        if unmerged and (newest is None or unmerged > (len(merged) if merged else 0) / 4):
            Index.merge(indexes).save(self.path / FILE)
            self._forget_snapshot()

    def _current(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = Snapshot(self.path)
        return self._snapshot

    def _forget_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _forget_environment(self) -> None:
        if self._environment is not None:
            self._environment.release()
            self._environment = None

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError(f"the writer of {self.path} is closed")
        if os.getpid() != self._pid:
            raise UsageError(f"the writer of {self.path} belongs to process {self._pid}; open another one here")

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget_snapshot()
            self._forget_environment()
            self._lock.release()


def read_fingerprint(path: str | os.PathLike) -> dict[str, Any] | None:
    """The fingerprint of the store at `path`; None when there is no store yet, or one that holds nothing.

    Raises: StoreDamaged.
    """
    try:
        manifest = Manifest.load(Path(path))
    except StoreNotFound:
        return None
    return manifest.fingerprint if manifest.shards else None


def _make_directory(path: Path) -> None:
    with disk_errors(path.absolute().parent):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{path} is a file; a store is a directory, give another name") from None
    if not (path / MANIFEST).exists():
        strangers = [p.name for p in path.iterdir() if TEMPORARY not in p.name and p.name != "writer.lock"]
        if strangers:
            raise UsageError(f"{path} is not a store and holds {strangers[0]!r}; give an empty or a new directory")


def _is_empty_shard(path: Path) -> bool:
    try:
        environment = Environment.acquire(path)
    except FileNotFoundError:
        return True
    try:
        with environment.read() as view:
            return not len(view)
    finally:
        environment.release()


def _check_key(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidRegions(key, "key_invalid", "the key is not valid unicode; percent-escape its bytes") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise InvalidRegions(key, "key_invalid", f"the key has {size} bytes, allowed are 1 to {MAX_KEY_BYTES}")


def _differences(existing: Manifest, wanted: Manifest) -> list[str]:
    """Every choice in which a store and a job differ, with both values."""
    pairs = {"feature_dtype": (existing.feature_dtype, wanted.feature_dtype)}
    if wanted.fingerprint is not None:
        stored = existing.fingerprint or {}
        for name in sorted({*stored, *wanted.fingerprint}):
            pairs[name] = stored.get(name, "(absent)"), wanted.fingerprint.get(name, "(absent)")
    if existing.vocabularies:
        for name, words in wanted.vocabularies.items():
            stored_words = existing.vocabularies.get(name, [])
            if words != stored_words:
                place = next((i for i, (a, b) in enumerate(zip(stored_words, words)) if a != b), None)
                at = "" if place is None else f", first different at {place}: {stored_words[place]!r}, {words[place]!r}"
                pairs[f"{name} vocabulary"] = f"{len(stored_words)} names", f"{len(words)} names{at}"
    return [f"{name} is {a!r} in the store, {b!r} here" for name, (a, b) in pairs.items() if a != b]
