"""Shell patterns for listing files: braces and globs, expanded here so that they may be quoted and never overflow."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator

_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def is_pattern(path: str) -> bool:
    """Whether the path holds `*`, `?`, `[` or `{`."""
    return any(mark in path for mark in "*?[{")


def expand_braces(pattern: str) -> list[str]:
    """`{a,b}` and `{000..002}` as bash reads them: one pattern per alternative; a lone `{x}` stays as it is."""
    for opening in re.finditer(r"\{", pattern):
        start = opening.start()
        if (found := _alternatives(pattern, start)) is not None:
            alternatives, end = found
            return [each for option in alternatives for each in expand_braces(pattern[:start] + option + pattern[end:])]
    return [pattern]


def _alternatives(pattern: str, start: int) -> tuple[list[str], int] | None:
    """The options of the brace at `start` and the index after its end; None if it is not an expansion."""
    depth, options, begin = 0, [], start + 1
    for index in range(start, len(pattern)):
        char = pattern[index]
        depth += (char == "{") - (char == "}")
        if (char == "," and depth == 1) or depth == 0:
            options.append(pattern[begin:index])
            begin = index + 1
        if depth == 0:
            if len(options) > 1:
                return options, index + 1
            if bounds := _RANGE.fullmatch(options[0]):
                first, last = int(bounds[1]), int(bounds[2])
                width = max(map(len, bounds.groups())) if any(b[0] == "0" for b in bounds.groups()) else 1
                step = 1 if first <= last else -1
                return [f"{n:0{width}d}" for n in range(first, last + step, step)], index + 1
            return None
    return None


def split_fixed(pattern: str) -> tuple[str, list[str]]:
    """The folder in front of the first part with a pattern in it ("." for none), and the parts from there on."""
    parts = pattern.split("/")
    fixed = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    folder = "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") else ".")
    return folder, [part for part in parts[fixed:] if part]


def find(pattern: str) -> Iterator[str]:
    """Paths that match, names sorted within each folder. `**` is any depth, without following links to folders.

    A leading dot must be matched by a dot. A folder that cannot be listed is yielded itself.
    """
    for plain in expand_braces(pattern):
        yield from _match(*split_fixed(plain))


def _match(folder: str, parts: list[str]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part != "**" and not is_pattern(part):
        path = _join(folder, part)
        if rest:
            yield from _match(path, rest)
        elif os.path.lexists(path):
            yield path
        return
    if part == "**":
        if not rest:
            yield folder
            return
        yield from _match(folder, rest)
    try:
        names = sorted(os.listdir(folder), key=os.fsencode)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        yield folder
        return
    for name in names:
        path = _join(folder, name)
        if part == "**":
            if not name.startswith(".") and os.path.isdir(path) and not os.path.islink(path):
                yield from _match(path, parts)
        elif fnmatch.fnmatchcase(name, part) and name.startswith(".") <= part.startswith("."):
            if not rest:
                yield path
            elif os.path.isdir(path):
                yield from _match(path, rest)


def _join(folder: str, name: str) -> str:
    return name if folder == "." else os.path.join(folder, name)
