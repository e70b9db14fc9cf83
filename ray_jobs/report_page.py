"""The page of a job's report: one static HTML file without scripts that needs nothing beside it and no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cache import Failure
from cache.output import size
from extractor.gallery import STYLE, html_terms, html_text

from .pace import merge_pairs
from .report_pictures import Picture
from .report_runs import Run
from .tally import STAGES

OWN_STYLE = """
:root { --good: #1a7f4b; --bad: #b3261e; --wait: #8a5a00; --plot: #2f6fb0; }
@media (prefers-color-scheme: dark) { :root { --good: #58c48c; --bad: #ff8a80; --wait: #e3b341; --plot: #6cb0f0; } }
body { max-width: 1200px; }
.verdict { margin: 0 0 1.5rem; font-size: 1.05rem; overflow-wrap: anywhere; }
.verdict::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .6em;
  border-radius: 50%; background: currentColor; }
.good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
.tiles { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); margin: 0; }
.tiles div { padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
.tiles dd { font-size: 1.35rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.soft { color: var(--soft); font-size: .86rem; }
.wide { overflow-x: auto; }
.wide table { width: auto; min-width: min(100%, 30rem); }
.chart { padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
.chart svg { display: block; width: 100%; height: 9rem; border-bottom: 1px solid var(--soft); }
.chart rect { fill: var(--plot); }
.axis { display: flex; justify-content: space-between; }
.share { display: inline-block; height: .6em; min-width: 2px; border-radius: 2px; background: var(--bad); }
.failed { grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
.failed img { height: 9rem; aspect-ratio: auto; }
code { font: .86rem/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.facts { display: grid; gap: .4rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); }
"""

WAITING = (75, 130)  # exit codes after which the same line goes on
FEWEST_BARS = 8


def report_page(
    title: str,
    runs: Sequence[Run],
    facts: Mapping[str, object],
    pictures: Iterable[Picture],
    failures: Mapping[str, Sequence[tuple[Failure, Picture | None]]],
) -> str:
    """The page.

    Args:
        title: heading.
        runs: all that are shown, the latest last; the page is about that one.
        facts: what the job was.
        pictures: samples with regions.
        failures: kind -> some failures of that kind, each with its picture if there is one.
    """
    run = runs[-1]
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{html_text(title)}</title>\n<style>{STYLE}{OWN_STYLE}</style>\n</head>\n<body>\n",
            f'<h1>{html_text(title)}</h1>\n<p class="verdict {_tone(run.exit_code)}">{html_text(run.verdict)}</p>\n',
            _totals(run),
            _chart(run),
            _stages(run),
            _failures(run, failures),
            _pictures(list(pictures)),
            _facts(run, facts),
            _history(runs),
            "</body>\n</html>\n",
        ]
    )


def duration(seconds: float) -> str:
    """For people: "0.8 s", "12:05 min" or "3:00:00 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600:,}:{whole // 60 % 60:02d}:{whole % 60:02d} h"


def _tone(exit_code: int) -> str:
    return "good" if exit_code == 0 else "wait" if exit_code in WAITING else "bad"


def _totals(run: Run) -> str:
    tiles = {
        f"listed{'' if run.listing_complete else ' so far'}": f"{run.listed:,}",
        "in the store": f"{run.records:,}",
        "failed": f"{run.failed:,}",
        "time": duration(run.seconds),
        "images/s": _rate(run.committed, run.seconds),
        "regions written": f"{run.regions:,}",
        "bytes written": size(run.nbytes),
    }
    waiting = f" + {run.waiting:,} not reached" if run.waiting else ""
    replaced = f" + {run.replaced:,} replaced" if run.replaced else ""
    sums = (
        f"{run.listed:,} listed = {run.records:,} in the store + {run.failed:,} failed{waiting}; "
        f"{run.records:,} in the store = {run.new:,} new{replaced} + {run.already:,} from before"
    )
    return f'<dl class="tiles">\n{html_terms(tiles)}</dl>\n<p class="soft">{sums}</p>\n'


def _chart(run: Run) -> str:
    """Bars of images per second over the time of a run, wide enough for most of them to have a commit."""
    spans, width = run.span_images, run.span_seconds
    while len(spans) > FEWEST_BARS and 2 * spans.count(0) >= len(spans):
        spans, width = merge_pairs(spans), 2 * width
    highest = max(spans, default=0)
    if not highest:
        return ""
    bars = "".join(
        f'<rect x="{place + 0.05:g}" y="{100 - 100 * images / highest:.2f}" width="0.9" '
        f'height="{100 * images / highest:.2f}"><title>{_number(images / width)} images/s</title></rect>\n'
        for place, images in enumerate(spans)
        if images
    )
    end = len(spans) * width
    return (
        f'<h2>Images per second</h2>\n<div class="chart"><div class="soft">{_number(highest / width)}</div>\n'
        f'<svg viewBox="0 0 {len(spans)} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="images per second over time">\n{bars}</svg>\n'
        f'<div class="axis soft"><span>0</span><span>{duration(end / 2)}</span><span>{duration(end)}</span></div>\n'
        "</div>\n"
    )


def _stages(run: Run) -> str:
    rows = [
        (
            stage,
            f"{run.stage_images.get(stage, 0):,}",
            duration(seconds),
            _rate(run.stage_images.get(stage, 0), seconds),
        )
        for stage in STAGES
        if (seconds := run.stage_seconds.get(stage, 0.0)) or run.stage_images.get(stage)
    ]
    note = "The speed of a stage is what it could do if it had nothing to wait for; the slowest sets the pace."
    return _section("Stages", _table(("stage", "images", "time", "images/s"), rows, numeric=(1, 2, 3)), note)


def _failures(run: Run, shown: Mapping[str, Sequence[tuple[Failure, Picture | None]]]) -> str:
    if not run.failed:
        return ""
    most = max(run.failures.values())
    rows = "".join(
        f'<tr><td>{html_text(kind)}</td><td class="number">{count:,}</td>'
        f'<td style="width:60%"><span class="share" style="width:{100 * count / most:.1f}%"></span></td></tr>\n'
        for kind, count in run.failures.items()
    )
    parts = [f"<table>\n{rows}</table>\n"]
    for kind, some in shown.items():
        more = run.failures.get(kind, 0) - len(some)
        rest = f'<p class="soft">and {more:,} more</p>\n' if more > 0 else ""
        cards = "".join(_figure(failure.key, picture, failure.message, failure.source) for failure, picture in some)
        parts.append(f'<h3>{html_text(kind)}</h3>\n<main class="failed">\n{cards}</main>\n{rest}')
    note = "roivault ls STORE --failures lists all that the store holds; --retry-failed tries them again."
    return _section(f"Failures ({run.failed:,})", "".join(parts), note)


def _pictures(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    cards = "".join(_figure(picture.key, picture, picture.caption) for picture in pictures)
    return _section("Some of the pictures", f"<main>\n{cards}</main>\n")


def _figure(key: str, picture: Picture | None, *lines: str) -> str:
    image = f'<img src="{picture.uri}" alt="{html_text(key)}">\n' if picture else ""
    told = "".join(f'<div class="size">{html_text(line)}</div>\n' for line in lines if line and line != key)
    return f'<figure>{image}<figcaption><div class="key">{html_text(key)}</div>\n{told}</figcaption></figure>\n'


def _facts(run: Run, facts: Mapping[str, object]) -> str:
    command = f"<p><code>{html_text(run.command)}</code></p>\n"
    return _section("The job", f'{command}<dl class="facts">\n{html_terms(facts)}</dl>\n')


def _history(runs: Sequence[Run]) -> str:
    rows = [
        (
            run.started.replace("T", " ").removesuffix("+00:00"),
            duration(run.seconds),
            f"{run.new:,}",
            f"{run.replaced:,}",
            f"{run.already:,}",
            f"{run.failed:,}",
            _rate(run.committed, run.seconds),
            ", ".join(dict.fromkeys(run.devices)),
            run.exit_code,
            run.verdict,
        )
        for run in reversed(runs)
    ]
    columns = ("started (UTC)", "time", "new", "replaced", "before", "failed", "images/s", "device", "exit", "verdict")
    return _section(f"Runs ({len(runs)})", _table(columns, rows, numeric=(1, 2, 3, 4, 5, 6, 8)))


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    kind: Callable[[int], str] = lambda place: ' class="number"' if place in numeric else ""  # noqa: E731
    heads = "".join(f"<th{kind(place)}>{html_text(name)}</th>" for place, name in enumerate(columns))
    lines = "".join(
        "<tr>" + "".join(f"<td{kind(place)}>{html_text(cell)}</td>" for place, cell in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table>\n<tr>{heads}</tr>\n{lines}</table></div>\n'


def _section(title: str, body: str, note: str = "") -> str:
    told = f'<p class="soft">{html_text(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{html_text(title)}</h2>\n{body}{told}</section>\n"


def _rate(images: int, seconds: float) -> str:
    return _number(images / seconds) if images and seconds else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
