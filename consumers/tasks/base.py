"""What a task is: annotation rows as examples, and what its examples are trained and judged by.

A task reads files where their publishers put them, below one folder of annotations. A `Selection` names one file of
it; `Task.load` turns that file into `Example`s, in the order of its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cache import DataError, UsageError
from cache.keys import candidates

from .files import find_file

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Selection:
    """One set of examples of a task.

    Attributes:
        split: "train", "dev" or "test".
        language: of the texts as they were written; ISO 639-1.
        shots: name of a few-shot training set, "5" or "10x2"; None for the full one.
        translated: by machine. Test sets are translated into English, dev sets out of it.
    """

    split: str
    language: str = "en"
    shots: str | None = None
    translated: bool = False

    def __str__(self) -> str:
        shots = f" {self.shots} shots" if self.shots else ""
        return f"{self.language} {self.split}{shots}{' translated' if self.translated else ''}"


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        id: unique within its selection.
        text: as it is in the file, untouched.
        images: for each picture, the keys under which stores may have it, the usual one first.
        labels: class index -> score; empty when the row has no label, or one outside the vocabulary: never right.
        answer: what the file says is right, in words.
        facts: what results are broken down by, such as "concept" or "structural".
        answers: all that were given, of tasks whose answers are texts of any kind.
        references: the answers as the publishers cut them into words, which soft metrics compare with.
        answered_in: language of the answers, ISO 639-1.
    """

    id: str
    text: str
    images: tuple[tuple[str, ...], ...]
    labels: Mapping[int, float] = field(default_factory=dict)
    answer: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    answered_in: str = "en"

    def __post_init__(self) -> None:
        """Raises: DataError: what should be text is something else."""
        for name in ("id", "text", "answer"):
            if not isinstance(value := getattr(self, name), str):
                raise DataError(f"the {name} is {str(value)[:100]}; wanted is text in quotes")


@dataclass(frozen=True)
class Count:
    """How many rows and pictures a selection has; None for pictures that nobody counted."""

    rows: int
    images: int | None

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Count:
        return cls(len(examples), len({keys[0] for example in examples for keys in example.images}))


class Task(ABC):
    """A task over the annotations in a folder.

    Args:
        annotations: the folder that holds the datasets' folders (XVNLI, gqa, xGQA, ...), or the dataset's own folder.

    Attributes:
        name: what users call it.
        folders: names that the dataset's folder has in `annotations`.
        head: the head of `consumers.encoders.HEADS` that answers it; "" for a task that is answered by writing texts.
        languages: of its test sets.
        metric: "accuracy" or "recall"; or "cider" of texts.
        max_tokens: length at which texts are cut.
        labels: the classes by index; empty for retrieval.
        eval_sets: parts of the test sets that may be asked for, the published scores' own first.
        many_shots: few-shot sets beyond those of the benchmark itself, for some languages.
        examples: a miniature of the files, {path below `annotations`: rows}, on which every task is tested: an English
            training, dev and test set at least, with two pictures or more.
        counts: its sets, with the rows and pictures of the published files; None for files that differ by user.
        paper_rows: of sets of which the paper prints another number of rows than the published files have.
    """

    name: str
    folders: tuple[str, ...]
    head: str
    languages: tuple[str, ...]
    metric = "accuracy"
    max_tokens = 80
    labels: Sequence[str] = ()
    eval_sets: Sequence[str] = ()
    many_shots: Sequence[str] = ()
    counts: Mapping[Selection, Count | None]
    paper_rows: Mapping[Selection, int] = MappingProxyType({})
    examples: Mapping[str, Any]

    def __init__(self, annotations: str | Path):
        self.annotations = Path(annotations)

    @abstractmethod
    def path(self, selection: Selection) -> Path:
        """Where the file of a selection should be. Raises: UsageError: the task has no such selection."""

    @abstractmethod
    def read(self, path: Path, selection: Selection) -> Iterator[Example]:
        """The examples of a file. Raises: InputNotFound, DataError."""

    def load(self, selection: Selection) -> list[Example]:
        """The examples of a selection, in the order of its file.

        Raises:
            UsageError: the task has no such selection.
            InputNotFound: its file is not there.
            DataError: a row lacks a field or has one that cannot be used, or two rows have the same id; names the file
                and the row, or the id.
        """
        if selection.split not in SPLITS:
            raise UsageError(f"split {selection.split!r} is not one of {', '.join(SPLITS)}")
        examples = list(self.read(self.path(selection), selection))
        if not examples:
            raise DataError(f"{self.path(selection)} has no rows")
        ids = {one.id for one in examples}
        if len(ids) < len(examples):  # predictions are told apart by them
            twice = next(one.id for one in examples if one.id not in ids or ids.remove(one.id))
            raise DataError(f"{self.path(selection)} has more than one row of the id {twice!r}")
        return examples

    def gold(self, selection: Selection) -> list[Example]:
        """What predictions for a selection are held against: its examples, of which the texts need not be read.

        Raises: as `load`.
        """
        return self.load(selection)

    def is_right(self, example: Example, said: str) -> bool:
        """Whether a prediction is: a row without a label has none that is."""
        return bool(example.labels) and said == example.answer

    def each_scores(self, examples: Sequence[Example], said: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores of each prediction that only this task has, in percent, whose means are told beside the accuracy."""
        return {}

    def said_in_the_end(self, said: Sequence[str], selection: Selection) -> list[str]:
        """What predictions become before they are kept and scored, such as translations."""
        return list(said)

    def more_scores(self, examples: Sequence[Example], right: Sequence[bool]) -> dict[str, float]:
        """Scores that only this task has, beside its accuracy, from which examples were answered right."""
        return {}

    def facts_of_scores(self, examples: Sequence[Example]) -> dict[str, str]:
        """How scores came about, where that is not the same for all examples: they are told beside them."""
        return {}

    def notes(self) -> list[str]:
        """What is unusual about its examples, as they were asked for."""
        return []

    def more_stats(self) -> dict[str, list[dict[str, Any]]]:
        """What only this task's files tell beside `tasks stats`: {title: rows of a table}. Raises: DataError."""
        return {}

    def published(self, selection: Selection) -> Count | None:
        """What the files of a selection, as they are here, should hold."""
        return self.counts[selection]

    def is_there(self, selection: Selection) -> bool:
        """Whether the file of a selection is on the disk."""
        return find_file(self.path(selection)) is not None

    def folder(self, *inside: str) -> Path:
        """A folder of the dataset: below `annotations`, or `annotations` itself when it is the dataset's own."""
        homes = [self.annotations / name for name in self.folders] + [self.annotations]
        found = next((home for home in homes if home.joinpath(*inside).is_dir()), homes[0])
        return found.joinpath(*inside)

    def check_eval_set(self, asked: str) -> str:
        """Raises: UsageError: the task has no such evaluation set."""
        if asked not in self.eval_sets:
            raise UsageError(f"evaluation set {asked!r} of {self.name} is not one of {', '.join(self.eval_sets)}")
        return asked

    def refuse(self, selection: Selection) -> UsageError:
        """What to raise of a selection that the task does not have: it tells those that it has."""
        languages: dict[tuple[bool, str], list[str]] = {}
        for one in dict.fromkeys([Selection("train"), Selection("dev"), *self.counts]):
            if one.split == selection.split:
                languages.setdefault((one.translated, one.shots or ""), []).append(one.language)
        shots: dict[tuple[bool, str], list[str]] = {}  # of sets in the same languages
        for (translated, number), those in languages.items():
            shots.setdefault((translated, ", ".join(those)), []).append(number)
        told = []
        for (translated, those), numbers in shots.items():
            whole = " whole or" if any(numbers) and "" in numbers else ""
            few = f"{whole} of {', '.join(filter(None, numbers))} shots" if any(numbers) else ""
            told.append(f"{those}{' translated' if translated else ''}{few}")
        return UsageError(f"{self.name} has no {selection}; its {selection.split} sets are {'; '.join(told)}")


def example(path: Path, row: int, record: Mapping[str, Any], make: Any) -> Example:
    """What `make(record)` gives, or an error that names the file and the row.

    Raises: DataError.
    """
    try:
        return make(record)
    except DataError as error:
        raise DataError(f"{path}, row {row}: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise DataError(f"{path}, row {row}: {type(error).__name__} {error} in {str(record)[:200]}") from error


def image_keys(record: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Keys of the pictures of a row. Raises: DataError."""
    return tuple(tuple(forms) for forms in candidates(record))
