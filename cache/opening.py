"""Opening a store for writing: whether the job fits it, and what a killed writer left half done."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import index, lock, manifest
from .environment import LOCK_SUFFIX, Environment
from .errors import StoreDamaged, StoreMismatch, StoreNotFound, UsageError
from .files import DAMAGED, TEMPORARY, disk_errors
from .index import Index
from .manifest import Manifest

_ABSENT = "(absent)"


def prepare_directory(path: Path) -> None:
    """Make the directory of a store, unless it is one. Raises: UsageError: it is something else; DiskError."""
    with disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{path} is a file; a store is a directory, give another name") from None
        except FileNotFoundError as error:
            raise UsageError(f"no store can be made at {path}: {error.strerror}; choose another place") from None
    check_directory(path)


def check_directory(path: Path) -> None:
    """See that a directory is a store, empty or not there. Raises: UsageError, StoreDamaged."""
    if path.is_dir() and not (path / manifest.FILE).exists():
        strangers = [p.name for p in path.iterdir() if TEMPORARY not in p.name and p.name != lock.FILE]
        if any(name.startswith("shard-") for name in strangers):
            raise StoreDamaged(path / manifest.FILE, "the manifest is missing")
        if strangers:
            raise UsageError(f"{path} is not a store and holds {strangers[0]!r}; give a new or an empty directory")


def open_manifest(path: Path, wanted: Manifest) -> Manifest:
    """The manifest to go on with: that of the store, where the job fits it, else a new one.

    Raises: StoreMismatch: names everything in which they differ; StoreDamaged, DiskError.
    """
    try:
        existing = Manifest.load(path)
    except StoreNotFound:
        existing = None
    if existing is None:
        result = wanted
    elif not existing.shards:  # a store that holds nothing fits every job
        result = replace(
            wanted,
            fingerprint=existing.fingerprint if wanted.fingerprint is None else wanted.fingerprint,
            vocabularies=wanted.vocabularies or existing.vocabularies,
        )
    else:
        found = differences(existing, wanted)
        if found:
            raise StoreMismatch(
                f"{path} was made by other choices: {'; '.join(found)}; write to another store, or use the choices of "
                "this one"
            )
        result = existing if existing.vocabularies else replace(existing, vocabularies=wanted.vocabularies)
    if result != existing:
        result.save(path)
    return result


def read_fingerprint(path: str | os.PathLike) -> dict[str, Any] | None:
    """The fingerprint of the store at `path`; None when there is no store yet, or one that holds nothing.

    Raises: StoreDamaged.
    """
    try:
        manifest = Manifest.load(Path(path))
    except StoreNotFound:
        return None
    return manifest.fingerprint if manifest.shards else None


def differences(one: Manifest, other: Manifest, places: tuple[str, str] = ("in the store", "here")) -> list[str]:
    """Why the records of two manifests must not be mixed; what `other` does not tell is no difference.

    Args:
        places: what the two are called.
    """
    a, b = places
    pairs = {"feature_dtype": (one.feature_dtype, other.feature_dtype)}
    if None not in (one.dim, other.dim):
        pairs["dim"] = one.dim, other.dim
    if other.fingerprint is not None:
        stored = one.fingerprint or {}
        for name in sorted({*stored, *other.fingerprint}):
            pairs[name] = stored.get(name, _ABSENT), other.fingerprint.get(name, _ABSENT)
    found = [f"{name} is {mine!r} {a}, {its!r} {b}" for name, (mine, its) in pairs.items() if mine != its]
    if one.vocabularies and other.vocabularies:
        for name in sorted({*one.vocabularies, *other.vocabularies}):
            mine, its = one.vocabularies.get(name, []), other.vocabularies.get(name, [])
            if mine != its:
                at = next((i for i in range(max(len(mine), len(its))) if mine[i : i + 1] != its[i : i + 1]), None)
                found.append(
                    f"the vocabulary of {name} has {len(mine)} names {a}, {len(its)} {b}, and differs at {at}: "
                    f"{mine[at : at + 1]} {a}, {its[at : at + 1]} {b}"
                )
    return found


def sweep(path: Path, current: Manifest) -> None:
    """Remove what a killed writer left half done; nothing of it was ever part of the store.

    Raises: StoreDamaged: there is a shard with states that the manifest does not know.
    """
    listed = {name for shard in current.shards for name in (shard.file, shard.index_file)}
    listed |= {shard.file + LOCK_SUFFIX for shard in current.open}
    for file in sorted(path.iterdir()):
        if file.name.endswith((TEMPORARY, TEMPORARY + LOCK_SUFFIX)):
            file.unlink()
        elif file.name.startswith("shard-") and file.name not in listed and file.suffix != DAMAGED:
            if file.suffix == ".lmdb" and not _is_empty_shard(file):
                raise StoreDamaged(
                    file, "the manifest does not know this shard", "move it out of the store, or run `roivault repair`"
                )
            file.unlink(missing_ok=True)
    if not _is_sound(path / index.FILE):  # it holds nothing that the shards' own indexes do not
        (path / index.FILE).unlink(missing_ok=True)


def _is_sound(path: Path) -> bool:
    try:
        Index.open(path)
    except StoreDamaged:
        return False
    return True


def _is_empty_shard(path: Path) -> bool:
    environment = Environment.acquire(path)
    try:
        with environment.read() as view:
            return not len(view)
    finally:
        environment.release()
