"""Files of a published store, brought to this machine for as long as they are looked at."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StoreDamaged
from .files import require_room
from .index import FILE as MERGED_INDEX
from .index import HEADER_BYTES, promised_size
from .manifest import Manifest, Shard
from .mirror import read_manifest
from .published import Place
from .remote import RemoteFolder


def manifest_of(place: Place) -> Manifest:
    """Raises: StoreNotFound, StoreDamaged, StoreUnreachable."""
    return read_manifest(place)[0] if isinstance(place, RemoteFolder) else Manifest.load(place)


@contextmanager
def fetched(place: Place, shards: Iterable[Shard], indexes_only: bool = False) -> Iterator[Path]:
    """A directory that has the files of some sealed shards: that of a local store itself, else one with copies.

    Of a file that is missing, cut or too long there, the copy is so as well.

    Args:
        indexes_only: without the shards, with the merged index.

    Raises: StoreUnreachable, DiskError.
    """
    if not isinstance(place, RemoteFolder):
        yield place
        return
    sizes = {shard.index_file: shard.index_bytes for shard in shards}
    if indexes_only:
        with contextlib.suppress(FileNotFoundError):
            sizes[MERGED_INDEX] = promised_size(place.read(MERGED_INDEX, 0, HEADER_BYTES)) or HEADER_BYTES
    else:
        sizes |= {shard.file: shard.bytes for shard in shards}
    with tempfile.TemporaryDirectory(prefix="roivault-") as name:
        require_room(Path(name), sum(sizes.values()))
        for file, size in sizes.items():
            try:
                place.download(file, Path(name, file), size)
                with open(Path(name, file), "ab") as copy:
                    copy.write(place.read(file, size, size + 1))
            except FileNotFoundError:
                Path(name, file).unlink()
            except StoreDamaged:
                pass
        yield Path(name)


def named(problem: str, path: Path, place: Place) -> str:
    """What was found in a directory of `fetched`, said of where it is from."""
    return problem.replace(str(path), str(place))
