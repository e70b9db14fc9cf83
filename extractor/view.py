"""Look into a store: find the image of each key again and draw its regions on it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from cache import Failure, InputNotFound, Regions, RoivaultError, UsageError
from cache.keys import FILE_KEY_RULES, file_key, fits, shorten

from .draw import draw_regions
from .gallery import write_gallery
from .images import DecodePolicy, decode

if TYPE_CHECKING:
    from PIL import Image

    from cache import RegionStore

PAGE, PICTURES = "index.html", "pictures"


class ImageFinder:
    """Finds the image file that a key was made from.

    A folder is tried with the key as a relative path first. Only when that fails is it searched, once, for files whose
    path, name or stem gives the key under the key rules of `extract`.

    Args:
        place: the folder that was extracted, or one image for a single key.
    """

    def __init__(self, place: str | os.PathLike):
        self.place = Path(place)
        self._found: dict[str, Path] | None = None
        if not self.place.exists():
            raise InputNotFound(f"--images {self.place} does not exist; give the folder that was extracted")

    def __call__(self, key: str) -> Path:
        """The image of `key`. Raises: InputNotFound, with what was tried."""
        if self.place.is_file():
            return self.place
        direct = self.place / key
        if ".." not in direct.parts and not Path(key).is_absolute() and os.path.isfile(direct):
            return direct
        if self._found is None:
            self._found = self._search()
        if key not in self._found:
            raise InputNotFound(
                f"no image for key {key!r}: neither {direct} nor any file under {self.place} whose path, name or stem "
                "is that key; give the folder that was extracted with --images"
            )
        return self._found[key]

    def _search(self) -> dict[str, Path]:
        """Key -> file, for every key rule; a file's path beats another's name, the name beats the stem."""
        files = []
        seen = set()  # links may lead back up
        for folder, folders, names in os.walk(self.place, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders.sort()
            files.extend(Path(folder, name) for name in sorted(names))
        found: dict[str, Path] = {}
        for rule in FILE_KEY_RULES:
            for file in files:
                key = file_key(os.fspath(file.relative_to(self.place)), rule)
                found.setdefault(key if fits(key) else shorten(key), file)
        return found


@dataclass
class View:
    """What `draw_store` did. `pictures`: key -> file; `errors`: the keys that could not be drawn, and why."""

    pictures: dict[str, Path] = field(default_factory=dict)
    errors: dict[str, RoivaultError] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def draw_key(
    store: RegionStore, key: str, find_image: ImageFinder, **limits: float | None
) -> tuple[Regions, Image.Image, str]:
    """Regions of a key, the picture of them, and a warning ("" when the image is the one they were made from).

    The image is decoded by the policy that the store was extracted with, so that boxes and pixels agree. `limits` are
    those of `draw_regions`.

    Raises:
        MissingKeys: the store has no record of the key.
        InputNotFound: its image is not found.
        ImageError, DataError: the image cannot be decoded, or has another size than the record's.
    """
    regions = store[key]
    path = find_image(key)
    choices = store.manifest.fingerprint or {}
    policy = DecodePolicy(**{f.name: choices[f.name] for f in fields(DecodePolicy) if f.name in choices})
    image = decode(path, key, policy)
    warning = ""
    if None not in (regions.source_digest, image.source_digest) and regions.source_digest != image.source_digest:
        warning = f"{path} has changed since {key!r} was extracted; the boxes may not belong to what it shows"
    return regions, draw_regions(image.rgb, regions, *vocabularies(store), **limits), warning


def make_folder(path: Path) -> None:
    """Make a folder to write to, unless it is there. Raises: UsageError: there can be none."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        raise UsageError(f"-o: no folder can be made at {path}: {error.strerror}; choose another place") from None


def draw_store(
    store: RegionStore,
    keys: Iterable[str],
    find_image: ImageFinder,
    out: str | os.PathLike,
    *,
    failures: Iterable[Failure] = (),
    title: str = "roivault",
    page: bool = True,
    **limits: float | None,
) -> View:
    """Draw some keys into a folder, one PNG a key.

    With `page` the folder gets an `index.html` that shows them all and lists `failures`, and the pictures lie in a
    folder beside it. A key that cannot be drawn is reported in the result and does not stop the others. `limits` are
    those of `draw_regions`.
    """
    out = Path(out)
    folder = out / PICTURES if page else out
    make_folder(folder)
    view = View(failures=list(failures))
    taken: set[str] = set()

    def pictures() -> Iterator[tuple[str, str, Regions]]:
        for key in keys:
            try:
                regions, picture, warning = draw_key(store, key, find_image, **limits)
            except RoivaultError as error:
                view.errors[key] = error
                continue
            if warning:
                view.warnings.append(warning)
            name = _file_name(key, taken)
            picture.save(folder / name)
            view.pictures[key] = folder / name
            yield key, (folder / name).relative_to(out).as_posix(), regions

    if page:
        classes, attributes = vocabularies(store)
        facts = store_facts(store) | ({"drawn": f"score ≥ {limits['min_score']:g}"} if limits.get("min_score") else {})
        write_gallery(out / PAGE, pictures(), classes, attributes, title, facts, view.failures)
    else:
        for _ in pictures():
            pass
    return view


def extracted_folder(store: RegionStore) -> Path:
    """The folder that a store's images came from, as its latest shard tells. Raises: InputNotFound."""
    told = [origin["path"] for shard in store.manifest.shards for origin in shard.provenance if "path" in origin]
    if not told:
        raise InputNotFound("the store does not say where its images came from; give their folder with --images")
    folder = Path(told[-1])
    while set("*?[{") & set(folder.name) and not folder.exists():  # the fixed part of a pattern
        folder = folder.parent
    if folder.is_file():  # one image, or a list of them
        folder = folder.parent
    if not folder.is_dir():
        raise InputNotFound(f"the images came from {told[-1]}, which is not there; give their folder with --images")
    return folder


def vocabularies(store: RegionStore) -> tuple[Sequence[str], Sequence[str]]:
    """Class and attribute names of a store, empty when it has none."""
    names = store.manifest.vocabularies
    return names.get("classes", ()), names.get("attributes", ())


def store_facts(store: RegionStore) -> dict[str, str]:
    """What a page says about its store."""
    manifest, choices = store.manifest, store.manifest.fingerprint or {}
    facts = {"model": choices.get("preset"), "weights": str(choices.get("weights_sha256") or "")[:12]}
    facts |= {"images": f"{len(store):,}", "features": f"{manifest.dim} × {manifest.feature_dtype}"}
    return {name: str(value) for name, value in facts.items() if value}


def _file_name(key: str, taken: set[str]) -> str:
    """File name of a key's picture: like the key, valid and distinct on every system, and the same in every run."""
    stem = re.sub(r"[^\w.-]+", "_", key, flags=re.ASCII).strip("._")[-80:]
    if not stem or stem.casefold() in taken:
        stem = f"{stem}-{xxhash.xxh3_64_hexdigest(key.encode())}".lstrip("-")
    taken.add(stem.casefold())
    return f"{stem}.png"
