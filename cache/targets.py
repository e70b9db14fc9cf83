"""What a user names when stores are to be read: directories, shards of one, patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import StoreNotFound, UsageError
from .manifest import FILE, Manifest

Target = str | os.PathLike | Iterable[str | os.PathLike]


def absolute(target: Target) -> list[str]:
    """The target as a list of absolute paths and globs. Raises: UsageError."""
    targets = [os.fspath(item) for item in ([target] if isinstance(target, (str, os.PathLike)) else target)]
    if not targets:
        raise UsageError("no store was given")
    for item in targets:
        if "://" in item:
            raise UsageError(f"{item}: only stores on a local or mounted disk can be opened; copy it there")
    return [os.path.abspath(item) for item in targets]


def resolve_targets(targets: Sequence[str]) -> list[tuple[Path, frozenset[int] | None]]:
    """Each store directory once, with the shards of it that were asked for (None: all). Raises: StoreNotFound."""
    parts: dict[Path, set[int] | None] = {}
    for target in targets:
        matches = [target] if os.path.exists(target) else sorted(glob.glob(target))
        if not matches:
            raise StoreNotFound(f"there is no store at {target}")
        for path in map(Path, matches):
            if path.is_dir():
                parts[path] = None
            elif path.suffix == ".lmdb" and (path.parent / FILE).exists():
                chosen = parts.setdefault(path.parent, set())
                numbers = {s.number for s in Manifest.load(path.parent).shards if s.file == path.name}
                if not numbers:
                    raise StoreNotFound(f"{path} is not a shard of the store: {path.parent / FILE} does not list it")
                if chosen is not None:
                    chosen |= numbers
            else:
                raise StoreNotFound(f"{path} is neither a store directory nor a shard of one")
    return [(path, chosen if chosen is None else frozenset(chosen)) for path, chosen in parts.items()]
