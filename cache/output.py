"""What the store commands print: tables on a terminal, tab-separated lines in a pipe, and no control characters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


def visible(text: str) -> str:
    """`text` with everything that does not print written as an escape, so that a key cannot draw on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(*cells: object) -> None:
    """Print one line; characters that the terminal's encoding lacks become escapes too."""
    encoding = sys.stdout.encoding or "utf-8"
    line = "\t".join(visible(str(cell)) for cell in cells)
    print(line.encode(encoding, "backslashreplace").decode(encoding))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print rows: a table on a terminal, in a pipe one line a row, without title or heading."""
    if not sys.stdout.isatty():
        for row in rows:
            say(*row)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*columns, title=title and Text(visible(title)), title_justify="left")
    for row in rows:
        drawn.add_row(*(Text(visible(str(cell))) for cell in row))
    Console().print(drawn)


def size(count: int) -> str:
    """A number of bytes for people."""
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**power:.{min(power, 1)}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
