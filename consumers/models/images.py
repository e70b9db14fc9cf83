"""Pictures of a folder, found by the keys that a task calls them by: for models that read pixels."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cache import DataError, InputNotFound, MissingKeys

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MOST_PIXELS = 2**28  # of one picture; what claims more is refused before it is decoded


class FolderOfImages:
    """The pictures below a folder, at any depth.

    A key stands for the file of that path below the folder, or of that name, each with or without a suffix.

    Raises: InputNotFound: there is no picture.
    """

    made_with = ()

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._files: dict[str, Path] = {}
        self._twice: dict[str, tuple[Path, Path]] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.suffix.lower() in SUFFIXES:
                inside = path.relative_to(self.folder).as_posix()
                for form in (inside, os.path.splitext(inside)[0], path.name, path.stem):
                    other = self._files.setdefault(form, path)
                    if other != path and other != self.folder / form:
                        self._twice[form] = other, path
        if not self._files:
            raise InputNotFound(f"{folder} has no pictures ({', '.join(SUFFIXES)})")

    def resolve(self, pictures: Sequence[tuple[str, ...]]) -> tuple[list[str], dict[int, int]]:
        """The first form of each picture that there is a file of, and how many were found in which form.

        Raises: MissingKeys, DataError: a name that two files have.
        """
        keys = [next((form for form in forms if form in self._files), None) for forms in pictures]
        if lost := [forms[0] for forms, key in zip(pictures, keys, strict=True) if key is None]:
            raise MissingKeys(lost, str(self.folder), "other forms of the names were tried as well")
        if form := next((key for key in keys if key in self._twice), None):
            first, second = self._twice[form]
            raise DataError(f"picture {form!r} may be {first} or {second}: give a folder that has it once")
        return keys, dict(sorted(Counter(map(tuple.index, pictures, keys)).items()))

    def get_many(self, keys: Sequence[str]) -> list[np.ndarray]:
        """u8 [H, W, 3], RGB, turned as its EXIF tells. Raises: DataError: a picture cannot be decoded."""
        return [self._read(self._files[key]) for key in keys]

    def _read(self, path: Path) -> np.ndarray:
        from PIL import Image, ImageOps

        try:
            with warnings.catch_warnings(), Image.open(path) as image:
                warnings.simplefilter("ignore")
                if image.width * image.height > MOST_PIXELS:
                    raise DataError(f"{path} has {image.width} x {image.height} pixels, more than can be read")
                upright = ImageOps.exif_transpose(image)
                if upright.mode.startswith("I"):  # `convert` would make white of all but the darkest 16-bit grey
                    upright = Image.fromarray(((np.asarray(upright).clip(0, 65535) + 128.0) // 257).astype(np.uint8))
                return np.asarray(upright.convert("RGB"))
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be decoded: {error}") from error
