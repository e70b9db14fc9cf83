"""Scoring a predictions file against the annotations of its task.

Layouts of a file, which may be gzipped: for questions, a list of {"questionId": ..., "prediction": ...} or
{"question_id": ..., "answer": ...}: an answer, or the name or number of a class, of a row that is named by its id or,
where none is, by its number from 0; for captions, a list of {"image_id": ..., "caption": ...}; for retrieval, a list
with the best pictures of each caption (places of pictures in the order in which the annotations first name them), or a
matrix of scores [captions, pictures] in the .npy format.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cache import DataError, InputNotFound

from .metrics import listed_ranks, percent, rank_summary, ranks, recalls
from .tasks import Example, Selection, Task

IDS = ("questionId", "question_id", "image_id", "id")
ANSWERS = ("prediction", "answer", "caption")
GZIP, NPY = b"\x1f\x8b", b"\x93NUMPY"  # how such files begin, whatever their names


def score_predictions(task: Task, path: str | Path, selection: Selection) -> dict[str, Any]:
    """The scores of a predictions file, in percent.

    Returns: {"n": rows scored, "accuracy": ...} with "subsets" by the facts that the annotations tell, or
        {"n": captions, "images": ..., "ir_r1": ..., "ir_r5": ..., "ir_r10": ...} with "tr_*" where the file has scores
        and "subsets" where the pictures come from several datasets.

    Raises:
        InputNotFound: the predictions or the annotations are not there.
        DataError: a row of the annotations has no prediction, or the file is not laid out as it should be.
    """
    return score_examples(task, task.gold(selection), path)


def score_examples(task: Task, examples: Sequence[Example], path: str | Path) -> dict[str, Any]:
    """`score_predictions` for examples that were loaded before."""
    predictions = read_predictions(Path(path))
    score = {"recall": score_recall, "cider": score_texts}.get(task.metric, score_answers)
    try:
        return score(task, examples, predictions)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def right_ones(task: Task, examples: Sequence[Example], path: str | Path) -> np.ndarray:
    """Which examples a predictions file answers right, or finds the picture of at once: bool [examples].

    Raises: InputNotFound, DataError.
    """
    predictions = read_predictions(Path(path))
    try:
        if task.metric == "recall":
            return caption_places(examples, predictions) < 1
        return np.array(answered_right(task, examples, predictions), bool)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def read_predictions(path: Path) -> list | np.ndarray:
    """Raises: InputNotFound, DataError."""
    if not path.is_file():
        raise InputNotFound(f"predictions {path} are {'not a file' if path.exists() else 'not there'}")
    data = path.read_bytes()
    try:
        if data.startswith(GZIP):
            data = gzip.decompress(data)
        found = np.load(io.BytesIO(data), allow_pickle=False) if data.startswith(NPY) else json.loads(data)
    except Exception as error:  # zlib, json and numpy have many errors of their own for bytes that make no sense
        raise DataError(f"{path} is neither one JSON list nor a .npy matrix: {error}") from error
    if isinstance(found, np.ndarray):
        if found.ndim != 2 or found.dtype.kind not in "fiu":
            raise DataError(f"{path} holds {found.dtype} {found.shape}, not a matrix of scores")
        return found
    if not isinstance(found, list):
        raise DataError(f"{path} holds a {type(found).__name__}, not a list of predictions")
    return found


def score_answers(task: Task, examples: Sequence[Example], rows: Sequence[Any]) -> dict[str, Any]:
    """Accuracy: a prediction is right when it is the answer, character by character, or as the task says. Rows of other
    ids are ignored."""
    said = predictions_of(task, examples, rows)
    right = [task.is_right(example, one) for example, one in zip(examples, said, strict=True)]
    each = task.each_scores(examples, said)
    more = {name: float(values.mean()) if len(values) else 0.0 for name, values in each.items()}
    result = {"accuracy": percent(sum(right), len(examples)), "n": len(examples), **more}
    result |= task.facts_of_scores(examples)
    return result | task.more_scores(examples, right) | {"subsets": subset_scores(examples, right, each)}


def score_texts(task: Task, examples: Sequence[Example], rows: Sequence[Any]) -> dict[str, Any]:
    """Scores of texts that were written, as the task has them, and how they came about."""
    each = task.each_scores(examples, predictions_of(task, examples, rows))
    means = {name: float(values.mean()) for name, values in each.items()}
    facts = task.facts_of_scores(examples)
    return {**means, "n": len(examples), **facts, "subsets": subset_scores(examples, None, each)}


def answered_right(task: Task, examples: Sequence[Example], rows: Sequence[Any]) -> list[bool]:
    """Which examples are answered right. Raises: DataError: a row cannot be read, or an example has none."""
    pairs = zip(examples, predictions_of(task, examples, rows), strict=True)
    return [task.is_right(example, said) for example, said in pairs]


def predictions_of(task: Task, examples: Sequence[Example], rows: Sequence[Any]) -> list[str]:
    """What was said of each example; classes may be given by number.

    Raises: DataError: a row cannot be read, or an example has none.
    """
    said = _by_id(rows)
    rows_by_number = said.keys() == {str(row) for row in range(len(examples))}
    if rows_by_number and not any(example.id in said for example in examples):
        said = {example.id: said[str(row)] for row, example in enumerate(examples)}
    missing = [example.id for example in examples if example.id not in said]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(examples):,} rows of the annotations have no prediction: "
            f"{', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}"
        )
    return [_class_name(task, said[example.id]) for example in examples]


def subset_scores(
    examples: Sequence[Example], right: Sequence[bool] | None, each: Mapping[str, np.ndarray] = MappingProxyType({})
) -> dict[str, dict[str, dict[str, float]]]:
    """{fact: {value: {"accuracy": ..., "n": ..., and the means of `each`}}} for each fact that the examples tell;
    without accuracy where nothing is right or wrong."""
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, example in enumerate(examples):
        for fact, value in example.facts.items():
            groups[fact][value].append(place)

    def scores(places: list[int]) -> dict[str, float]:
        accuracy = {} if right is None else {"accuracy": percent(sum(right[place] for place in places), len(places))}
        return {**accuracy, "n": len(places), **{k: float(v[places].mean()) for k, v in each.items()}}

    return {fact: {value: scores(places) for value, places in values.items()} for fact, values in groups.items()}


def _by_id(rows: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, row in enumerate(rows):
        names = [name for name in IDS if isinstance(row, Mapping) and name in row]
        answers = [name for name in ANSWERS if isinstance(row, Mapping) and name in row]
        if not names or not answers:
            raise DataError(f"row {number} is {str(row)[:100]}; wanted is {{{IDS[0]!r}: ..., {ANSWERS[0]!r}: ...}}")
        key, answer = str(row[names[0]]), row[answers[0]]
        if not isinstance(answer, str | int):  # null and NaN, and lists of answers
            raise DataError(f"row {number} has {str(answer)[:100]} for {answers[0]}; wanted is a text, or a class")
        if found.setdefault(key, answer) != answer:
            raise DataError(f"{key} has two different predictions")
    return found


def _class_name(task: Task, said: Any) -> str:
    if isinstance(said, str | bool) or not task.labels:
        return str(said)
    if not 0 <= said < len(task.labels):
        raise DataError(f"{str(said)[:20]} is no class; there are {len(task.labels):,}, from 0. Put answers in quotes")
    return task.labels[said]


def score_recall(task: Task, examples: Sequence[Example], found: Sequence[Any] | np.ndarray) -> dict[str, Any]:
    """Recall at 1, 5 and 10 of pictures by captions (ir) and, from a matrix, of captions by pictures (tr)."""
    images = _images(examples)
    by_caption, by_image = _places(images, found)
    result = {"n": len(examples), "images": len(set(images.tolist())), **task.facts_of_scores(examples)}
    scores = recalls(by_caption, "ir")
    if by_image is not None:
        scores |= recalls(by_image, "tr")
        scores["mean_recall"] = sum(scores.values()) / len(scores)
        scores |= rank_summary(by_caption, "ir") | rank_summary(by_image, "tr")
    kinds = [example.facts.get("subset") for example in examples]
    subsets = {}
    for kind in dict.fromkeys(kinds) if len(set(kinds)) > 1 else ():
        rows = np.array([one == kind for one in kinds])
        subsets[kind] = {"n": int(rows.sum()), **recalls(by_caption[rows], "ir")}
        if by_image is not None:
            subsets[kind] |= recalls(by_image[np.unique(images[rows])], "tr")
    return result | scores | {"subsets": subsets}


def caption_places(examples: Sequence[Example], found: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Place, from 0, of the picture of each caption: i64 [captions]. Raises: DataError."""
    return _places(_images(examples), found)[0]


def _images(examples: Sequence[Example]) -> np.ndarray:
    """Number of the picture of each caption, in the order in which pictures are first named."""
    places: dict[str, int] = {}
    return np.array([places.setdefault(example.images[0][0], len(places)) for example in examples], np.int64)


def _places(images: np.ndarray, found: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """`ranks`, or of lists of pictures the places of pictures alone. Raises: DataError."""
    if len(found) != len(images):
        raise DataError(f"it has {len(found)} rows for the {len(images)} captions of the annotations")
    if isinstance(found, np.ndarray):
        return ranks(found, images)
    return listed_ranks(_checked_lists(found, int(images.max(initial=-1)) + 1), images), None


def _checked_lists(lists: Sequence[Any], images: int) -> Sequence[Sequence[int]]:
    """Lists of pictures, long enough for recall at 10. Raises: DataError."""
    for row, found in enumerate(lists):
        numbers = isinstance(found, list) and all(type(place) is int and 0 <= place < images for place in found)
        if not numbers or len(set(found)) != len(found) or len(found) < min(10, images):
            raise DataError(
                f"row {row} is {str(found)[:100]}; wanted are at least {min(10, images)} different pictures, "
                f"numbers from 0 to {images - 1}, best first"
            )
    return lists
