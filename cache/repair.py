"""Mend a store: every state that can be read is kept, and every key that was lost is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .diagnosis import SHARD_FILE, Diagnosis, Part
from .environment import LOCK_SUFFIX
from .errors import StoreMismatch, StoreNotFound, UsageError
from .files import TEMPORARY, disk_errors, require_room, set_aside, sync
from .index import FILE as MERGED_INDEX
from .index import Index
from .lock import WriterLock
from .manifest import FILE as MANIFEST
from .manifest import Manifest, Shard
from .opening import differences, sweep
from .salvage import remake
from .shard import file_checksum, sealed
from .verify import merged_problems


@dataclass
class RepairReport:
    """What was, or in a dry run would be, done to a store.

    Attributes:
        actions: a sentence for everything that was wrong.
        lost: keys whose state cannot be read; the store has them no more, so that a job does them again.
        unnamed: how many states were lost whose keys cannot be read either, as far as that can be told.
        uncounted: names of the files that may have had more of these.
        aside: names of the files that keep what was damaged.
        records, failures: what the store holds.
        fingerprint_lost: nothing tells any more how the store was made.
    """

    path: str
    dry_run: bool = False
    actions: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unnamed: int = 0
    uncounted: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    records: int = 0
    failures: int = 0
    fingerprint_lost: bool = False

    @property
    def exit_code(self) -> int:
        return 65 if self.lost or self.unnamed or self.uncounted or self.fingerprint_lost else 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


def repair(
    path: Path,
    like: Path | None = None,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> RepairReport:
    """Mend a store. Interrupted anywhere, it can be done again.

    Damaged files are moved aside, neither altered nor deleted; what can be read of a damaged shard is written into a
    new one with its number. A shard that a killed writer left open is sealed.

    Args:
        like: a store of the same job, to take the fingerprint and the vocabularies from when the manifest cannot be
            read or has no fingerprint.
        dry_run: only find out what is to be done.
        on_progress: called with (bytes examined, bytes in all).

    Raises:
        StoreNotFound: there is nothing that was a store.
        StoreLocked: somebody is writing to it.
        StoreDamaged: nothing can be read, or the store has another format version.
        StoreMismatch, UsageError: `like` does not fit, or is not needed.
        DiskError
    """
    path = Path(os.path.abspath(path))
    if not path.is_dir() or not any(name == MANIFEST or SHARD_FILE.fullmatch(name) for name in os.listdir(path)):
        raise StoreNotFound(f"there is no store at {path}: it has neither {MANIFEST} nor a shard")
    model = Manifest.load(Path(like)) if like is not None else None
    # a dry run may be of a store that cannot be written to, and then nobody else writes to it either
    lock = WriterLock(path) if not dry_run or os.access(path, os.W_OK) else None
    try:
        report = RepairReport(str(path), dry_run)
        with disk_errors(path):
            plan = _Plan(Diagnosis(path, on_progress), report, model, str(like))
            if not dry_run:
                plan.carry_out()
        return report
    finally:
        if lock:
            lock.release()


class _Plan:
    """What is to be done with a store, said in `report`."""

    def __init__(self, found: Diagnosis, report: RepairReport, model: Manifest | None, like: str):
        self._found, self._report, self._path = found, report, found.path
        report.lost = [key.decode(errors="backslashreplace") for key in found.lost]
        report.unnamed = sum(part.salvage.unnamed or 0 for part in found.parts)
        report.uncounted = [part.shard.file for part in found.parts if part.salvage.unnamed is None]
        held = Index.merge([part.salvage.index() for part in found.parts])
        report.records, report.failures = held.records, held.failures
        self._manifest = self._plan_manifest(model, like)
        self._steps = [(part, self._plan_part(part)) for part in found.parts]
        self._strays = self._plan_rest()

    def _say(self, text: str) -> None:
        self._report.actions.append(text)

    def _plan_manifest(self, model: Manifest | None, like: str) -> Manifest:
        """The new one, without shards."""
        found, old = self._found, self._found.manifest
        made = Manifest(*found.features)
        if not found.trusted:
            self._say(f"{MANIFEST}: {found.why}; it is made anew from the shards that are there")
        elif found.features != (old.feature_dtype, old.dim):
            self._say(f"{MANIFEST}: it says {old.feature_dtype}[{old.dim}], the records {_features(found)}; corrected")
        if model:
            if found.trusted and old.fingerprint is not None:
                raise UsageError(f"--like is for a store whose fingerprint is not known; that of {self._path} is")
            if clash := differences(model, made, (f"in {like}", "here")):
                raise StoreMismatch(f"{like} is no store of the same job: {'; '.join(clash)}")
            self._say(f"{MANIFEST}: the fingerprint and the vocabularies are taken from {like}")
            return replace(made, fingerprint=model.fingerprint, vocabularies=model.vocabularies)
        if old is None or (not found.trusted and old.fingerprint is None):
            self._report.fingerprint_lost = True
            self._say(
                f"{MANIFEST}: nothing tells the fingerprint any more; the records can be read, but no job "
                "goes on with them until `roivault repair --like STORE` is given a store of the same job"
            )
            return replace(made, vocabularies=old.vocabularies if old else {})
        if not found.trusted:
            self._say(
                f"{MANIFEST}: the fingerprint and the vocabularies are those of the damaged file, and the damage may "
                "lie in them: look at them with `roivault info`, or give --like STORE, a store of the same job"
            )
        return replace(made, fingerprint=old.fingerprint, vocabularies=old.vocabularies)

    def _plan_part(self, part: Part) -> str:
        """What becomes of a shard's file: "keep", "remake" or "remove"."""
        salvage, name = part.salvage, part.shard.file
        bad = len(salvage.broken) + (salvage.unnamed or 0)
        was_sealed = self._found.trusted and part.shard.sealed
        if part.shard.number in self._found.strangers:
            self._say(f"{name}: the manifest does not know it, and its features are others; it is moved aside")
            return "remove"
        if not part.source.exists():
            self._say(f"{name}: it is missing, with {bad:,} known states")
            return "remove"
        if not salvage.states:
            if not salvage.whole:
                self._say(f"{name}: nothing in it can be kept; it is moved aside")
            return "remove"
        if self._found.trusted and not part.listed:
            self._say(f"{name}: the manifest does not know it; it is taken in")
        if not salvage.whole or part.source.name != name:
            why = f"{bad:,} of its states cannot be read" if bad else "it is damaged, or holds states that do not count"
            self._say(f"{name}: {why}; the other {len(salvage.states):,} are written anew, the file is moved aside")
            return "remake"
        if was_sealed and not part.intact:
            self._say(f"{name}: it is not as the manifest says, but sound; it is kept")
        elif part.listed and self._found.trusted and not was_sealed:
            self._say(f"{name}: a writer that was killed left it open; it is sealed")
        elif part.index is None:
            self._say(f"{part.shard.index_file}: it is missing or damaged; it is made anew")
        return "keep"

    def _plan_rest(self) -> list[Path]:
        """index.idx and what lies about; returns the files that look like shards, but cannot be any."""
        merged = self._path / MERGED_INDEX
        if merged.exists() and self._found.merged is None:
            self._say(f"{MERGED_INDEX}: it is damaged; it is made anew")
        elif not self._report.actions:
            for problem in merged_problems(self._path, self._found.manifest):
                self._say(f"{problem.removesuffix('; delete it')}; it is made anew")
        locks = {part.shard.file + LOCK_SUFFIX for part in self._found.parts if part.shard.sealed}
        strays = []
        for name in sorted(os.listdir(self._path)):
            if name.endswith((TEMPORARY, TEMPORARY + LOCK_SUFFIX)) or name in locks:
                self._say(f"{name}: a process that was killed left it; it is removed")
            elif name.startswith("shard-") and name.endswith(".lmdb") and not SHARD_FILE.fullmatch(name):
                self._say(f"{name}: no shard has such a name; it is moved aside")
                strays.append(self._path / name)
        return strays

    # -- doing it

    def carry_out(self) -> None:
        if not self._report.actions:
            return
        require_room(self._path, sum(_bytes(part) for part, step in self._steps if step == "remake"))
        shards, indexes = [], []
        for part, step in self._steps:  # in this order: what does not count any more goes before what had overridden it
            if step == "remove":
                self._remove(part)
                continue
            shard, index = self._remake(part) if step == "remake" else self._keep(part)
            shards.append(shard)
            indexes.append(index)
        for stray in self._strays:
            self._set_aside(stray)
            stray.unlink(missing_ok=True)
        manifest = replace(self._manifest, shards=tuple(shards))
        if manifest != self._found.manifest or not self._found.trusted:
            if not self._found.trusted and (self._path / MANIFEST).exists():
                self._set_aside(self._path / MANIFEST)
            manifest.save(self._path)
        self._clear(self._path / MERGED_INDEX)
        Index.merge(indexes).save(self._path / MERGED_INDEX)
        sweep(self._path, manifest)

    def _set_aside(self, file: Path) -> None:
        self._report.aside.append(set_aside(file).name)

    def _remove(self, part: Part) -> None:
        file = self._path / part.shard.file
        if file.exists() and not (part.salvage.whole and not part.shard.sealed):  # sweeping removes an empty open shard
            self._set_aside(file)
            file.unlink(missing_ok=True)

    def _remake(self, part: Part) -> tuple[Shard, Index]:
        file = self._path / part.shard.file
        temporary, made = remake(part.source, file, part.shard.number, part.salvage)
        if file.exists():
            self._set_aside(file)
        os.replace(temporary, file)
        sync(self._path)
        return self._seal(part.shard, made.index())

    def _keep(self, part: Part) -> tuple[Shard, Index]:
        if part.intact and part.index is not None:
            part.index.covers[part.shard.number] = part.index.checksum
            return part.shard, part.index
        return self._seal(part.shard, part.salvage.index())

    def _seal(self, shard: Shard, index: Index) -> tuple[Shard, Index]:
        self._clear(self._path / shard.index_file)
        return sealed(self._path, shard, index, file_checksum(self._path / shard.file)), index

    def _clear(self, file: Path) -> None:
        """A folder cannot be replaced by a file."""
        if file.is_dir():
            self._set_aside(file)


def _features(found: Diagnosis) -> str:
    return f"{found.features[0]}[{found.features[1]}]"


def _bytes(part: Part) -> int:
    return sum(entry.length for entry in part.salvage.states.values())
