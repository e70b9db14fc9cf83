"""Writing a store: a batch of results is one transaction of the open shard, and full shards are sealed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import environment as lmdb_file
from .environment import LOCK_SUFFIX, Environment, View
from .errors import DiskError, InvalidRegions, StoreDamaged, StoreMismatch, UsageError, require_one_of
from .index import FILE as MERGED_INDEX
from .index import Index
from .keys import why_unfit
from .lock import WriterLock
from .manifest import Manifest, Shard, as_json
from .opening import open_manifest, prepare_directory, sweep
from .record import decode, encode
from .regions import FEATURE_DTYPES, Failure, Regions
from .shard import seal
from .snapshot import Snapshot
from .states import FAILURE, ON_DUPLICATE, REPLACED, WriteResult, decide, encode_failure

if TYPE_CHECKING:
    from .destination import Destination

Stored = tuple[str, int, bytes]  # key, flags, value
Made = dict[str, Any]  # where and with what records were made


class StoreWriter:
    """The one writer of a store directory. Creates it, or continues it, also where a killed writer stopped.

    A context manager: a normal end seals what is open, an exception leaves it open for the next writer.

    Args:
        path: the store directory, NAME.roi by convention.
        feature_dtype: float16, float32 or bfloat16.
        fingerprint: every choice that may change a byte of a record; None takes what the store has.
        vocabularies: {"classes": [...], "attributes": [...]}; None takes what the store has.
        provenance: where and with what the records are made; recorded for each shard, never a reason to refuse. The
            attribute of that name may be set until the first write.
        shard_size: bytes at which a shard is sealed and the next one begun.
        destination: where sealed shards go, `path` being its working folder.

    Raises:
        StoreMismatch: the store was made with another fingerprint, feature dtype or vocabulary; names each difference.
        StoreLocked: another writer has the store; names it.
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
        destination: Destination | None = None,
    ):
        require_one_of("feature_dtype", feature_dtype, tuple(FEATURE_DTYPES))
        if shard_size < 1:
            raise UsageError(f"the shard size must be positive, not {shard_size}")
        self.path = Path(os.path.abspath(path))
        self.provenance, self._shard_size, self._destination = provenance, shard_size, destination
        fingerprint = as_json("fingerprint", fingerprint)
        words = as_json("vocabularies", {name: list(words) for name, words in (vocabularies or {}).items()})
        self._pid = os.getpid()
        self._closed = False
        self._environment: Environment | None = None  # of the open shard, once there is one
        self._snapshot: Snapshot | None = None
        prepare_directory(self.path)
        self._lock = WriterLock(self.path)
        try:
            self._manifest = open_manifest(self.path, Manifest(feature_dtype, None, fingerprint, words))
            sweep(self.path, self._manifest)
            self._recover()
        except BaseException:
            self._release()
            raise

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def provenance(self) -> dict[str, Any] | None:
        return self._provenance

    @provenance.setter
    def provenance(self, value: dict[str, Any] | None) -> None:
        """Raises: UsageError."""
        self._provenance = as_json("provenance", value)

    def write(
        self,
        regions: Sequence[Regions],
        failures: Sequence[Failure] = (),
        on_duplicate: str = "error",
        overriding: Collection[str] = (),
    ) -> WriteResult:
        """Commit results, all or none of them, in one transaction; then seal the shard if it is full.

        A result is a duplicate when the state of its key is a record. A feature that overflows the store's dtype makes
        a failure (value_range) of its key. A new failure takes the place of an older one.

        Args:
            on_duplicate: "error" refuses the whole call; "drop" keeps the record that the store has, against a failure
                too; "replace" lets the new state win, and marks it so that it overrides earlier shards.

            overriding: keys whose new state wins over those of shards that this writer does not know.

        Raises:
            InvalidRegions: a value or a key that must not be stored, or a duplicate with "error".
            StoreMismatch: another feature dimension than the store's.
            DiskError: the disk is full or failing; the writer can go on when there is room again.
                After any of these, nothing of this call is written.
        """
        self._check_usable()
        require_one_of("on_duplicate", on_duplicate, ON_DUPLICATE)
        results, dim = self._encode(regions, failures)
        results = [(key, flags | REPLACED * (key in overriding), value) for key, flags, value in results]
        return self._commit(results, dim, [self.provenance] if self.provenance else [], on_duplicate)

    def write_stored(
        self, states: Sequence[Stored], dim: int | None, provenance: Sequence[Made] = (), on_duplicate: str = "error"
    ) -> WriteResult:
        """Commit states as another store has them, byte for byte, in one transaction, as `write` does.

        Args:
            states: (key, FAILURE or 0, value), records first; the caller vouches for them, and for their feature dtype.
            dim: of their features.
            provenance: where and with what they were made.
        """
        self._check_usable()
        return self._commit(states, dim, provenance, on_duplicate)

    def _commit(
        self, results: Sequence[Stored], dim: int | None, provenance: Sequence[Made], on_duplicate: str
    ) -> WriteResult:
        keys = list(dict.fromkeys(key for key, _, _ in results))
        found = zip(keys, self._current().states(keys, records=False), strict=True)
        stored = {key: state and state.flags for key, state in found}
        states, result = decide(results, stored, on_duplicate, self._refuse_duplicate)
        if states:
            environment = self._begin(dim, provenance)

            def fill(view: View) -> None:
                for key, (flags, value) in states.items():
                    view.put(key.encode(), flags, value)

            environment.write(fill)
            if environment.data_size() >= self._shard_size:
                with suppress(DiskError):  # this call is committed; the next one, or close, tries again
                    self._seal()
                self._hand_over()
        return result

    def states(self, keys: Sequence[str]) -> list[None | str | Failure]:
        """What the store holds for each key: None, "record" or the failure."""
        self._check_usable()
        found = self._current().states(keys, records=False)
        return [
            state and ("record" if state.is_record else self._current().failure(key, state))
            for key, state in zip(keys, found, strict=True)
        ]

    def source_digest(self, key: str) -> bytes | None:
        """The digest of the image that the key's record was made from; None without a record or a digest.

        Raises: CorruptRecord.
        """
        self._check_usable()
        (state,) = self._current().states([key])
        if state is None or not state.is_record:
            return None
        return decode(key, self._current().value(state)).source_digest

    def seal(self) -> None:
        """Make the open shard immutable; an empty one is removed. Raises: DiskError: it stays open."""
        self._check_usable()
        self._seal()
        self._hand_over()

    def _seal(self) -> None:
        if not self._manifest.open:
            return
        (shard,) = self._manifest.open
        environment = self._open_shard()
        with environment.read() as view:
            empty = not len(view)
        if empty:
            self._discard(shard, environment)
            return
        try:
            sealed = seal(self.path, shard, environment)
            self._save(self._manifest.with_shard(sealed))
        finally:
            self._forget_environment()
        # only now: as long as the shard counts as open, its readers and its next writer must meet in one lock file
        (self.path / (shard.file + LOCK_SUFFIX)).unlink(missing_ok=True)
        self._merge(closing=False)

    def close(self) -> None:
        """Seal what is open, bring index.idx up to date and let the next writer in. Raises: DiskError."""
        if self._closed:
            return
        try:
            self._check_usable()
            self._seal()
            self._merge(closing=True)
            if self._destination is not None:
                self._destination.finish(self._manifest)
        finally:
            self._release()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

    # -- the results of a call

    def _encode(self, regions: Sequence[Regions], failures: Sequence[Failure]) -> tuple[list[Stored], int | None]:
        """(key, flags, value) of every result, records first; and the feature dimension."""
        dim = self._manifest.dim
        records, failed = [], list(failures)
        for item in regions:
            _check_key(item.key)
            item.validate()
            d = item.features.shape[1]
            dim = d if dim is None else dim
            if d != dim:
                raise StoreMismatch(f"{item.key!r} has features of dimension {d}, those of {self.path} have {dim}")
            try:
                records.append((item.key, 0, encode(item, self._manifest.feature_dtype)))
            except InvalidRegions as error:
                failed.append(Failure(item.key, error.kind, error.message))
        for failure in failed:
            _check_key(failure.key)
        return [*records, *((failure.key, FAILURE, encode_failure(failure)) for failure in failed)], dim

    def _refuse_duplicate(self, key: str) -> InvalidRegions:
        return InvalidRegions(key, "duplicate_key", f"{self.path}, or this call, has a record of this key already")

    # -- the open shard

    def _recover(self) -> None:
        """Check the shard that a former writer left open; finish its seal when that had begun or is due."""
        for shard in self._manifest.open:
            size = self._open_shard().data_size()
            if (self.path / shard.index_file).exists() or size >= self._shard_size:
                self._seal()

    def _begin(self, dim: int | None, provenance: Sequence[Made]) -> Environment:
        """An open shard that the manifest knows, with this dimension and provenance, before anything is in it."""
        manifest = replace(self._manifest, dim=dim)
        if manifest.open:
            (shard,) = manifest.open
        else:
            shard = Shard(max((shard.number for shard in manifest.shards), default=-1) + 1)
            lmdb_file.create(self.path / shard.file)
        new = [entry for entry in provenance if entry not in shard.provenance]
        shard = replace(shard, provenance=(*shard.provenance, *new))
        self._save(manifest.with_shard(shard))
        return self._open_shard()

    def _open_shard(self) -> Environment:
        if self._environment is None:
            (shard,) = self._manifest.open
            # address space costs nothing, while growing the map runs a transaction again
            map_size = self._shard_size + self._shard_size // 4 + lmdb_file.MAP_SLACK
            try:
                self._environment = Environment.acquire(self.path / shard.file, writable=True, map_size=map_size)
            except FileNotFoundError:
                raise StoreDamaged(self.path / shard.file, "the open shard is missing") from None
            self._lost = weakref.finalize(self, self._environment.abandon)
        return self._environment

    def _discard(self, shard: Shard, environment: Environment) -> None:
        """Remove an open shard that holds nothing."""
        manifest = self._manifest.only({other.number for other in self._manifest.sealed})
        self._save(manifest if manifest.shards else replace(manifest, dim=None))
        environment.retire()
        self._forget_environment()
        for name in (shard.file, shard.file + LOCK_SUFFIX):
            (self.path / name).unlink(missing_ok=True)

    # -- what is cached of the store

    def _save(self, manifest: Manifest) -> None:
        if manifest != self._manifest:
            manifest.save(self.path)
            self._manifest = manifest
            self._forget_snapshot()

    def _hand_over(self) -> None:
        if self._destination is not None:
            self._destination.hand_over(self._manifest)

    def _merge(self, closing: bool) -> None:
        """Renew index.idx: at close when it lacks a shard, before that when it lacks more than a quarter."""
        merged, unmerged = self._current().merged, self._current().unmerged
        missing = sum(map(len, unmerged))
        if missing and (closing or missing > (len(merged) if merged else 0) / 4):
            Index.merge([*([merged] if merged else []), *unmerged]).save(self.path / MERGED_INDEX)
            self._forget_snapshot()

    def _current(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._destination.snapshot() if self._destination else Snapshot(self.path)
        return self._snapshot

    def _forget_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _forget_environment(self) -> None:
        if self._environment is not None:
            self._lost.detach()
            self._environment.release(writable=True)
            self._environment = None
        self._forget_snapshot()

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError(f"the writer of {self.path} is closed")
        if os.getpid() != self._pid:
            raise UsageError(f"the writer of {self.path} belongs to process {self._pid}; a forked child cannot use it")

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget_environment()
            self._lock.release()


def _check_key(key: str) -> None:
    if why := why_unfit(key):
        raise InvalidRegions(key, "key_invalid", why)
