"""The verb `tasks`: what tasks there are, whether their annotations are whole, and what these are like."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cache import InputNotFound
from cache.output import say, table

if TYPE_CHECKING:
    from .tasks import Selection, Task

_JSON = typer.Option(False, "--json", help="Print the result as JSON.")
_ANNOTATIONS = typer.Argument(..., metavar="DIR", help="The folder of the annotations.")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    tasks = typer.Typer(help="The tasks, and what of their annotations is on disk.", no_args_is_help=True)
    tasks.command("list")(list_all)
    tasks.command()(check)
    tasks.command()(stats)
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
    as_json: bool = _JSON,
) -> None:
    """Compare annotation files with the published counts, and their pictures with a store; 65 when they differ."""
    from cache import open_store

    from .tasks import list_tasks, load_task

    if not annotations.is_dir():
        raise InputNotFound(f"annotations {annotations} are not a folder")
    opened = open_store(store) if store else None
    rows = []
    for name in list_tasks() if task == "all" else [task]:
        known = load_task(name, annotations)
        rows += [{"task": name, **_check(known, selection, opened)} for selection in known.counts]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        shown = [(r["task"], r["set"], r["state"], r.get("rows", ""), r.get("pictures", ""), r["detail"]) for r in rows]
        table(("task", "set", "state", "rows", "pictures", ""), shown)
    if all(row["state"] == "absent" for row in rows):
        raise InputNotFound(f"{annotations} has none of the files of {task}; the first would be {rows[0]['detail']}")
    raise typer.Exit(65 if any(row["state"] == "differs" for row in rows) else 0)


def _check(task: Task, selection: Selection, store: Any) -> dict[str, Any]:
    from .tasks import Count

    if not task.is_there(selection):
        return {"set": str(selection), "state": "absent", "detail": str(task.path(selection))}
    examples = task.load(selection)
    found, wanted = Count.of(examples), task.counts[selection]
    problems = [] if wanted in (None, found) else [f"published are {wanted.rows:,} rows and {wanted.images:,} pictures"]
    if store is not None:
        pictures = list(dict.fromkeys(keys for example in examples for keys in example.images))
        lost = [keys[0] for keys in pictures if not any(key in store for key in keys)]
        if lost:
            problems.append(f"{len(lost):,} pictures are not in the store: {', '.join(lost[:3])}")
    state = "differs" if problems else "ok"
    counts = {"rows": found.rows, "pictures": found.images}
    return {"set": str(selection), "state": state, **counts, "detail": "; ".join(problems)}


def stats(
    task: str = typer.Argument(..., metavar="TASK", help="One of `tasks list`."),
    annotations: Path = _ANNOTATIONS,
    as_json: bool = _JSON,
) -> None:
    """What the sets of a task are like: labels, lengths of texts, and pictures that are in two sets."""
    from .tasks import load_task

    known = load_task(task, annotations)
    there = {one: known.load(one) for one in known.counts if known.is_there(one)}
    if not there:
        raise InputNotFound(f"{annotations} has none of the files of {task}")
    rows = []
    for selection, examples in there.items():
        words = sorted(len(example.text.split()) for example in examples)
        characters = sorted(len(example.text) for example in examples)
        pictures = {keys[0] for example in examples for keys in example.images}
        labels = Counter(example.answer for example in examples if example.answer)
        tests = {
            keys[0]
            for other, those in there.items()
            if other.split == "test" and other.language == selection.language and other != selection
            for example in those
            for keys in example.images
        }
        rows.append(
            {
                "set": str(selection),
                "rows": len(examples),
                "pictures": len(pictures),
                "blank": sum(not example.text.strip() for example in examples),
                "words": {"mean": sum(words) / len(words), "median": words[len(words) // 2], "most": words[-1]},
                "characters": {"mean": sum(characters) / len(characters), "most": characters[-1]},
                "labels": dict(labels.most_common(10)),
                "unlabelled": sum(not example.labels for example in examples) if known.metric == "accuracy" else 0,
                "pictures_in_test": len(pictures & tests) if selection.split != "test" else 0,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = ("set", "rows", "pictures", "words (mean, most)", "labels", "pictures also in test")
    shown = []
    for row in rows:
        labels = ", ".join(f"{name} {count:,}" for name, count in list(row["labels"].items())[:4])
        words = f"{row['words']['mean']:.1f}, {row['words']['most']}"
        shown.append((row["set"], row["rows"], row["pictures"], words, labels, row["pictures_in_test"]))
    table(columns, shown)
    if blank := sum(row["blank"] for row in rows):
        say(f"{blank} texts are blank")
