"""`tasks side-by-side`: whether a metric of captions goes with what people prefer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from cache.output import say, table


def register(tasks: typer.Typer) -> None:
    """Add the verb to those of `tasks`."""
    tasks.command("side-by-side")(side_by_side)


def side_by_side(
    judgements: Path = typer.Argument(
        ..., metavar="FILE", help="CSV: model_a, model_b, language, prefer_a, prefer_b, same; counts of pictures."
    ),
    scores: list[str] = typer.Argument(
        ..., metavar="[NAME=]RESULTS...", help="Folders of `evaluate`, or CSV: model, language, METRIC."
    ),
    metric: str = typer.Option("cider", "--metric", metavar="cider|rouge_l", help="Whose differences are looked at."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Correlate differences of a metric of captions with what people prefer, as Crossmodal-3600 was validated."""
    from .side_by_side import compare, read_judgements, read_scores

    found = compare(read_judgements(judgements), read_scores(scores, metric))
    if as_json:
        pairs = [{"model_a": a, "model_b": b, **asdict(one)} for (a, b), one in found.pairs.items()]
        points = [{**asdict(one), "gain": one.gain, "difference": value} for one, value in found.points]
        told = {"metric": metric, "together": asdict(found.together), "pairs": pairs, "points": points}
        print(json.dumps(told | {"missing": found.missing}, indent=2))
        return
    rows = [("all", found.together), *((f"{a} - {b}", one) for (a, b), one in found.pairs.items())]
    columns = ("models", "n", "Pearson", "p", "Spearman", "p", "Kendall", "p", "same sign")
    table(columns, [_row(name, asdict(one)) for name, one in rows])
    if found.missing:
        told = ", ".join(" in ".join(place) for place in found.missing[:5])
        say(f"left out, for lack of a {metric}: {len(found.missing)}, such as {told}")


def _row(name: str, one: dict[str, float | None]) -> tuple[str, ...]:
    figures = [
        "" if one[of] is None else format(one[of], form)
        for of, form in (
            ("pearson", "+.2f"), ("pearson_p", ".2g"), ("spearman", "+.2f"), ("spearman_p", ".2g"),
            ("kendall", "+.2f"), ("kendall_p", ".2g"),
        )
    ]  # fmt: skip
    return name, str(one["n"]), *figures, f"{one['same_sign']:.1f} %"
