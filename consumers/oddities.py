"""What is unusual about the examples of a run: it is told beside its scores."""

from __future__ import annotations

from collections.abc import Sequence

from cache import DataError

from .data import TaskData
from .models.data import ModelData
from .tasks import Example, Task


def without_class(task: Task, examples: Sequence[Example]) -> list[str]:
    """How many examples have a right answer that is none of the classes, so that no class is right."""
    lost = sum(not example.labels for example in examples if example.answers)
    total = len(examples)
    return (
        [f"{lost:,} of {total:,} have no answer among the {len(task.labels):,} classes: counted wrong"] if lost else []
    )


def oddities(task: Task, data: TaskData | ModelData, dev: TaskData | ModelData, writes: bool) -> list[str]:
    """What is unusual about examples to train on. Raises: DataError: none of them, or of those that choose the best
    weights, has a label, or an answer to write."""
    blank = sum(not example.text.strip() for example in data.examples) if task.head else 0
    notes = [f"{blank:,} of {len(data):,} texts to train on are blank"] if blank else []
    if task.metric == "recall":
        return notes
    for examples, purpose in ((data.examples, "train on"), (dev.examples, "choose the best weights by")):
        if not any(one.answer if writes else one.labels for one in examples):
            raise DataError(f"none of the {len(examples):,} rows to {purpose} has a label that {task.name} knows")
    if unlabelled := sum(not (one.answer if writes else one.labels) for one in data.examples):
        notes.append(f"{unlabelled:,} of {len(data):,} rows to train on have no label, or none that {task.name} knows")
    return notes
