"""A page of pictures with their regions: one static HTML file that needs no script and no network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from cache import Failure, Regions
from cache.output import visible

from .draw import Row, describe

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2128; --soft: #626b77; --line: #dfe3e8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1e2227; --ink: #e6e9ed; --soft: #97a1ad; --line: #343a42; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1600px; padding: 2rem 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 .75rem; font-size: 1.6rem; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.1rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 0 0 2rem; }
dt { color: var(--soft); font-size: .78rem; letter-spacing: .04em; text-transform: uppercase; }
dd { margin: 0; overflow-wrap: anywhere; }
main { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  align-items: start; }
figure { margin: 0; overflow: hidden; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
figure img { display: block; width: 100%; aspect-ratio: 4 / 3; object-fit: contain; background: var(--line); }
figcaption { padding: .7rem .9rem; }
.key { font-weight: 600; overflow-wrap: anywhere; }
.size, summary { color: var(--soft); font-size: .86rem; }
summary { cursor: pointer; }
details { margin-top: .3rem; overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; text-align: left; }
th, td { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.text { white-space: normal; overflow-wrap: anywhere; }
.number { text-align: right; }
.swatch { display: inline-block; width: .7em; height: .7em; margin-right: .45em; border-radius: 2px; }
"""


def write_gallery(
    path: str | os.PathLike,
    items: Iterable[tuple[str, str, Regions]],
    classes: Sequence[str],
    attributes: Sequence[str],
    title: str,
    facts: Mapping[str, object] | None = None,
    failures: Iterable[Failure] = (),
) -> None:
    """Write the page, replacing an older one only when it is complete.

    Args:
        path: the HTML file; its folder exists.
        items: (key, path of the drawn picture relative to the page, regions), written as they come.
        classes, attributes: the store's vocabularies.
        title: heading of the page.
        facts: what to say about the store under the heading.
        failures: images that have no regions, listed with their reasons.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with open(unfinished, "w", encoding="utf-8", newline="\n") as page:
            page.write(_head(title, facts or {}))
            for key, picture, regions in items:
                page.write(_figure(key, picture, regions, describe(regions, classes, attributes)))
            page.write("</main>\n" + _failures(list(failures)) + "</body>\n</html>\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def html_text(value: object) -> str:
    """Any value as the text of a page: nothing in it is markup, and nothing is invisible."""
    return escape(visible(str(value)))


def html_terms(facts: Mapping[str, object]) -> str:
    """The inside of a list of terms."""
    return "".join(
        f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>\n" for name, value in facts.items()
    )


def _head(title: str, facts: Mapping[str, object]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html_text(title)}</h1>\n" + (f"<dl>\n{html_terms(facts)}</dl>\n" if facts else "") + "<main>\n"
    )


def _figure(key: str, picture: str, regions: Regions, rows: list[Row]) -> str:
    source = escape(quote(picture))
    count = f"{len(rows)} region" + ("" if len(rows) == 1 else "s")
    table = f"<details><summary>{count}</summary>\n{_table(rows)}</details>" if rows else ""
    return (
        f'<figure><a href="{source}"><img src="{source}" alt="{html_text(key)}" loading="lazy"></a>\n'
        f'<figcaption><div class="key">{html_text(key)}</div>\n'
        f'<div class="size">{regions.width} × {regions.height} pixels{"" if rows else ", no regions"}</div>\n'
        f"{table}</figcaption></figure>\n"
    )


def _table(rows: list[Row]) -> str:
    columns = [("class", [row.class_name for row in rows]), ("p", [_number(row.class_prob) for row in rows])]
    columns += [("attribute", [row.attribute for row in rows]), ("p", [_number(row.attribute_prob) for row in rows])]
    columns += [("score", [_number(row.score) for row in rows])]
    columns += [("box", [", ".join(f"{side:.0f}" for side in row.box) for row in rows])]
    columns = [(name, cells) for name, cells in columns if any(cells)]
    numeric = {"p", "score"}
    heads = "".join(f"<th{' class=number' if name in numeric else ''}>{name}</th>" for name, _ in columns)
    lines = [f"<table><tr><th>#</th>{heads}</tr>\n"]
    for i, row in enumerate(rows):
        cells = "".join(
            f"<td{' class=number' if name in numeric else ''}>{html_text(cells[i])}</td>" for name, cells in columns
        )
        swatch = f'<span class="swatch" style="background:{row.color}"></span>'
        lines.append(f"<tr><td>{swatch}{row.rank}</td>{cells}</tr>\n")
    return "".join(lines) + "</table>"


def _failures(failures: list[Failure]) -> str:
    if not failures:
        return ""
    rows = "".join(
        f'<tr><td class="text">{html_text(failure.key)}</td><td>{html_text(failure.kind)}</td>'
        f'<td class="text">{html_text(failure.message)}</td></tr>\n'
        for failure in failures
    )
    return (
        f"<h2>Without regions ({len(failures)})</h2>\n"
        f"<table><tr><th>image</th><th>kind</th><th>reason</th></tr>\n{rows}</table>\n"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
