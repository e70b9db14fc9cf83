"""What a user names when stores are to be read: directories, shards of one, patterns, URLs."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .client import ServedFolder
from .client_access import Access, each_server, is_served
from .errors import StoreNotFound, UsageError
from .manifest import FILE, Manifest
from .remote import RemoteFolder, is_url, shown

Target = str | os.PathLike | Iterable[str | os.PathLike]


def is_store(target: str | os.PathLike) -> bool:
    """Whether a name means a store, or a shard of one: a URL, a name that ends in .roi, or what has a manifest."""
    path = Path(target)
    if is_url(target) or path.suffix == ".roi":
        return True
    return (path / FILE).exists() or (path.suffix == ".lmdb" and (path.parent / FILE).exists())


def absolute(target: Target) -> list[str]:
    """The target as a list of absolute paths, globs and URLs. Raises: UsageError."""
    try:
        targets = [os.fspath(item) for item in ([target] if isinstance(target, (str, os.PathLike)) else target)]
    except TypeError:
        raise UsageError(f"{target!r} is neither the path of a store nor a list of paths") from None
    targets = [url for item in targets for url in (each_server(item) if is_served(item) else [item])]
    if not targets:
        raise UsageError("no store was given")
    return [item if is_url(item) else os.path.abspath(item) for item in targets]


def on_this_machine(place: str | Path | RemoteFolder) -> Path:
    """The path of a store that is not behind a URL. Raises: UsageError."""
    if isinstance(place, RemoteFolder) or is_url(place):
        name = shown(str(place))
        raise UsageError(f"{name} is not on a disk of this machine: `roivault convert` copies a store to one")
    return Path(place)


def parts_of(place: Path | RemoteFolder, shards: Iterable[str] | None) -> list[str]:
    """The target that resolves to some shard files of a store, or to all of it."""
    if isinstance(place, RemoteFolder):
        return [place.url] if shards is None else [place.address(file) for file in shards]
    return [str(place)] if shards is None else [str(place / file) for file in shards]


def resolve_targets(
    targets: Sequence[str], access: Access | None = None
) -> list[tuple[Path | RemoteFolder, frozenset[int] | None]]:
    """Each store once, with the shards of it that were asked for (None: all).

    Args:
        access: to feature servers.

    Raises: StoreNotFound; UsageError: a URL that cannot be one of a store.
    """
    parts: dict[Path | RemoteFolder, set[int] | None] = {}
    for target in targets:
        if is_url(target):
            place, number = _split_shard(target)
            folder = ServedFolder(place, access) if is_served(target) else RemoteFolder(place)
            chosen = parts.setdefault(folder, None if number is None else set())
            if number is None:
                parts[folder] = None
            elif chosen is not None:
                chosen.add(number)
            continue
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


def _split_shard(url: str) -> tuple[str, int | None]:
    """The URL of a store, and the number of the shard that it names, if it names one."""
    base, mark, query = url.partition("?")
    store, _, last = base.rpartition("/")
    number = last.removeprefix("shard-").removesuffix(".lmdb")
    if last == f"shard-{number}.lmdb" and number.isdecimal():
        return store + mark + query, int(number)
    return url, None
