"""Texts in another language: by any function, or from a file of translations that were made before.

A function is named "module:function" and called as `function(texts, source, target)` with a list of different texts and
two ISO 639-1 codes; it returns their translations in the same order. A file has a row of JSON a line:

    {"source": "fr", "target": "en", "text": "De quelle couleur est le mur ?", "translation": "What color is the wall?"}
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cache import DataError, InputNotFound, UsageError

from .tasks.files import find_file, read_json_lines

FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")
FIELDS = ("source", "target", "text", "translation")

Function = Callable[[list[str], str, str], Sequence[str]]


class Translator:
    """`translator(texts, source, target)` -> translations.

    Args:
        how: "module:function", or the path of a file, which may have .gz or .zip behind its name.

    Raises:
        UsageError: the module or its function cannot be had.
        InputNotFound: there is no such file.
        DataError: a row of the file is not as above.
    """

    def __init__(self, how: str):
        self.how = how
        named = FUNCTION.fullmatch(how)
        if named and find_file(Path(how)) is None:
            self._translate = _function(how, *named.groups())
        elif find_file(Path(how)):
            self._translate = _Table(Path(how))
        else:
            raise InputNotFound(f"translations {how} are not there; give a file, or MODULE:FUNCTION")

    def __call__(self, texts: Sequence[str], source: str, target: str) -> list[str]:
        """Raises: DataError: a text is not in the file, or the function returns something else than a text for each."""
        if source == target:
            return list(texts)
        asked = list(dict.fromkeys(texts))
        found = self._translate(asked, source, target) if asked else []
        if len(found) != len(asked) or not all(isinstance(one, str) for one in found):
            raise DataError(f"{self.how} returned {str(found)[:100]} for {len(asked)} texts; wanted is a text for each")
        known = dict(zip(asked, found, strict=True))
        return [known[text] for text in texts]


class _Table:
    def __init__(self, path: Path):
        self._path = path
        self._rows: dict[tuple[str, str, str], str] = {}
        for number, row in enumerate(read_json_lines(path), 1):
            if not all(isinstance(row.get(name), str) for name in FIELDS):
                raise DataError(f"{path}, row {number}: {str(row)[:200]} lacks a text for one of {', '.join(FIELDS)}")
            source, target, text, translation = (row[name] for name in FIELDS)
            self._rows[source, target, text] = translation

    def __call__(self, texts: list[str], source: str, target: str) -> list[str]:
        found = [self._rows.get((source, target, text)) for text in texts]
        if lost := [text for text, one in zip(texts, found, strict=True) if one is None]:
            raise DataError(
                f"{self._path} lacks {len(lost):,} of {len(texts):,} translations from {source} into {target}, such as "
                f"that of {lost[0]!r}"
            )
        return found


def _function(how: str, module: str, name: str) -> Function:
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"translations by {how}: {error}; the module must be importable, see PYTHONPATH") from error
    if not callable(found):
        raise UsageError(f"translations by {how}: {name} is no function")
    return found
