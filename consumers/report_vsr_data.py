"""Pictures of VSR's annotations in a report, those of its paper: what captions are about, and where people disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .report_style import COLOURS, GREY, add_legend, tidy
from .tasks import load_task
from .tasks.vsr import concepts
from .tasks.vsr_relations import CATEGORIES, UNMAPPED, category_of
from .vsr_analysis import FREQUENT, disagreements, read_captions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RELATIONS = 40
CONCEPTS = 100  # captions of which a concept needs more, to be drawn
_COLOURS = dict(zip((*CATEGORIES, UNMAPPED), (*COLOURS, GREY), strict=True))


def annotation_figures(folder: str) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of what the files with all captions tell, where they are below `folder`. Raises: DataError."""
    task = load_task("vsr", folder)
    if validated := read_captions(task, "validated"):
        counts = Counter(record["relation"] for record in validated).most_common(MOST_RELATIONS)
        title = f"VSR: captions by relation, the {len(counts)} most frequent"
        yield "vsr-data-relations", _by_relation(title, "captions", counts)
        yield "vsr-data-concepts", _concepts(validated)
    if raw := read_captions(task, "raw"):
        rows = [row for row in disagreements(raw) if row["captions"] > FREQUENT]
        title = f"VSR: how likely two validators disagree, relations with more than {FREQUENT} captions"
        yield (
            "vsr-data-disagreement",
            _by_relation(title, "chance", [(row["relation"], row["disagreement"]) for row in rows]),
        )


def _bars(count: int) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.5, 1.5 + 0.24 * count), 4.6), layout="constrained")
    return figure, figure.subplots()


def _by_relation(title: str, what: str, rows: Sequence[tuple[str, float]]) -> Figure:
    """Bars in the colours of the categories."""
    figure, axes = _bars(len(rows))
    for category in dict.fromkeys(_COLOURS):
        places = [x for x, (name, _) in enumerate(rows) if category_of(name) == category]
        if places:
            axes.bar(places, [rows[x][1] for x in places], 0.75, color=_COLOURS[category], label=category)
    _name(axes, [name for name, _ in rows])
    tidy(axes, "", "", what)
    figure.suptitle(title, fontsize=12)
    add_legend(figure, [axes], rows=2)
    return figure


def _concepts(records: Sequence[dict[str, Any]]) -> Figure:
    """How often each concept is named first and second."""
    first, second = (Counter(names) for names in zip(*map(concepts, records), strict=True))
    both = [name for name, count in (first + second).most_common() if count > CONCEPTS]
    figure, axes = _bars(len(both))
    axes.bar(range(len(both)), [first[name] for name in both], 0.75, color=COLOURS[0], label="named first")
    bottom = [first[name] for name in both]
    axes.bar(range(len(both)), [second[name] for name in both], 0.75, bottom, color=COLOURS[4], label="named second")
    _name(axes, both)
    tidy(axes, "", "", "captions")
    figure.suptitle(f"VSR: concepts of more than {CONCEPTS} captions", fontsize=12)
    add_legend(figure, [axes])
    return figure


def _name(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axes.set_xlim(-0.7, len(names) - 0.3)
