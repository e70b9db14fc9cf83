"""The verb `tasks`: what tasks there are, whether their annotations are whole, and what these are like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cache import InputNotFound
from cache.output import say, table

from . import caption_commands, vsr_commands

if TYPE_CHECKING:
    from .tasks import Selection, Task
    from .training_overlap import TrainingPictures

_JSON = typer.Option(False, "--json", help="Print the result as JSON.")
_ANNOTATIONS = typer.Argument(..., metavar="DIR", help="The folder of the annotations.")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    tasks = typer.Typer(help="The tasks, and what of their annotations is on disk.", no_args_is_help=True)
    tasks.command("list")(list_all)
    tasks.command()(check)
    tasks.command()(stats)
    vsr_commands.register(tasks)
    caption_commands.register(tasks)
    app.add_typer(tasks, name="tasks")


def list_all(as_json: bool = _JSON) -> None:
    """The tasks: their languages, heads and published sets."""
    from .tasks import list_tasks, load_task

    rows = []
    for name in list_tasks():
        task = load_task(name, ".")
        shots = list(dict.fromkeys(one.shots for one in task.counts if one.shots))
        rows.append(
            {"task": name, "head": task.head, "metric": task.metric, "languages": list(task.languages), "shots": shots}
        )
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        columns = ("task", "head", "metric", "languages", "few-shot sets")
        table(columns, [(*list(r.values())[:3], " ".join(r["languages"]), " ".join(r["shots"])) for r in rows])


def check(
    task: str = typer.Argument(..., metavar="TASK", help="One of `tasks list`, or all."),
    annotations: Path = _ANNOTATIONS,
    store: list[str] = typer.Option([], "--store", metavar="STORE", help="Also look for the pictures there."),
    training: list[str] = typer.Option(
        [], "--training", metavar="STORE|FILE", help="Are test pictures among these, by name, or bytes with --store?"
    ),
    as_json: bool = _JSON,
) -> None:
    """Compare annotation files with the published counts, and their pictures with a store; 65 when they differ."""
    from cache import open_store

    from .tasks import list_tasks, load_task
    from .tasks.files import check_annotations

    check_annotations(annotations)
    opened = open_store(store) if store else None
    trained = None
    if training:
        from .training_overlap import TrainingPictures

        trained = TrainingPictures(training, with_bytes=opened is not None)
    rows = []
    for name in list_tasks() if task == "all" else [task]:
        known = load_task(name, annotations)
        rows += [{"task": name, **_check(known, selection, opened, trained)} for selection in known.counts]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        shown = [(r["task"], r["set"], r["state"], r.get("rows", ""), r.get("pictures", ""), r["detail"]) for r in rows]
        table(("task", "set", "state", "rows", "pictures", ""), shown)
    if all(row["state"] == "absent" for row in rows):
        raise InputNotFound(f"{annotations} has none of the files of {task}; the first would be {rows[0]['detail']}")
    raise typer.Exit(65 if any(row["state"] == "differs" for row in rows) else 0)


def _check(task: Task, selection: Selection, store: Any, trained: TrainingPictures | None) -> dict[str, Any]:
    from .tasks import Count

    if not task.is_there(selection):
        return {"set": str(selection), "state": "absent", "detail": str(task.path(selection))}
    examples = task.load(selection)
    found, problems = Count.of(examples), []
    if wanted := task.published(selection):
        if (found.rows, wanted.images or found.images) != (wanted.rows, found.images):
            pictures = "" if wanted.images is None else f" and {wanted.images:,} pictures"
            problems.append(f"published are {wanted.rows:,} rows{pictures}")
    notes = []
    if printed := task.paper_rows.get(selection):
        if printed == found.rows:
            problems, notes = [], ["as the paper prints, and not as the published files have it"]
        else:
            notes.append(
                f"{'not ' if problems else ''}as the published files have it; the paper prints {printed:,} rows"
            )
    row = {"set": str(selection), "rows": found.rows, "pictures": found.images}
    if store is not None:
        from .data import find_keys

        pictures = list(dict.fromkeys(keys for example in examples for keys in example.images))
        keys = find_keys(store, pictures)
        if lost := [forms[0] for forms, key in zip(pictures, keys, strict=True) if key is None]:
            problems.append(f"{len(lost):,} pictures are not in the store: {', '.join(lost[:3])}")
        places = [forms.index(key) for forms, key in zip(pictures, keys, strict=True) if key is not None]
        row["key_forms"] = {form: places.count(form) for form in sorted(set(places))}
        for form, count in row["key_forms"].items():
            like = next(key for forms, key in zip(pictures, keys, strict=True) if key and forms.index(key) == form)
            notes.append(f"{count:,} are there under keys like {like!r}")
    if trained is not None and selection.split == "test":
        shared = trained.shared(examples, store)
        row["in_training"] = len(shared)
        if shared:
            problems.append(f"{len(shared):,} of the pictures are trained on: {', '.join(shared[:3])}")
    state = "differs" if problems else "ok"
    return {**row, "state": state, "detail": "; ".join([*problems, *notes])}


def stats(
    task: str = typer.Argument(..., metavar="TASK", help="One of `tasks list`."),
    annotations: Path = _ANNOTATIONS,
    as_json: bool = _JSON,
) -> None:
    """What the sets of a task are like, beside published figures: labels, lengths of texts, pictures of two sets."""
    from .task_stats import task_stats
    from .tasks import load_task
    from .tasks.files import check_annotations

    check_annotations(annotations)
    known = load_task(task, annotations)
    found = task_stats(known)
    if not found["sets"]:
        first = known.path(next(iter(known.counts)))
        raise InputNotFound(f"{annotations} has none of the files of {task}; the first would be {first}")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    columns = ("set", "rows", "pictures", "published", "words", "characters", "labels", "pictures also in test")
    table(columns, [_set_row(row) for row in found["sets"]])
    say("words and characters of a text: mean, median, most")
    for row in found["splits"]:
        figures = ", ".join(f"{row[name]:,} {name} ({row[f'published_{name}']} published)" for name in _COUNTED)
        say(f"{row['split']} over all languages: {figures}")
    for row in found["shots"]:
        counts = {name: " or ".join(f"{count:,}" for count in row[name]) for name in _COUNTED}
        figures = ", ".join(f"{counts[name]} {name} ({row[f'published_{name}']:,} published)" for name in _COUNTED)
        say(f"{row['shots']} shots in each language: {figures}")
    if shared := found["shared_pictures"]:
        say("pictures that are in the test sets of two languages")
        table(("", *shared), [(one, *(row.get(other, "") for other in shared)) for one, row in shared.items()])
    if blank := sum(row["blank"] for row in found["sets"]):
        say(f"{blank} texts are blank")
    for title, rows in found["more"].items():
        say(title)
        table(list(rows[0]), [[_shown(value) for value in row.values()] for row in rows])


_COUNTED = ("pictures", "rows")


def _shown(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _set_row(row: dict[str, Any]) -> tuple:
    published = row["published"]
    lengths = [f"{row[of]['mean']:.1f}, {row[of]['median']}, {row[of]['most']}" for of in ("words", "characters")]
    if "labels" in row:
        labels = ", ".join(f"{name} {count:,}" for name, count in list(row["labels"].items())[:4])
        labels += f" (majority {row['majority']:.2f} %)" if "majority" in row else ""
    else:
        beside = f" ({row['published_one_caption']} published)" if "published_one_caption" in row else ""
        labels = f"{row['one_caption']:.1f} % have one caption{beside}"
    known = [published["rows"], published["pictures"]] if published else []
    counts = ", ".join(f"{count:,}" for count in known if count is not None)
    return row["set"], row["rows"], row["pictures"], counts, *lengths, labels, row.get("pictures_in_test", "")
