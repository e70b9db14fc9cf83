"""Making VSR's sets anew, as its paper made them: captions that validators agree about, and a split by concepts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cache import DataError
from cache.files import replace_file

from .tasks.base import SPLITS, example
from .tasks.files import read_json_lines
from .tasks.vsr import concepts
from .vsr_analysis import AGREED, is_validated

SHARES = {"train": 0.5, "dev": 0.2, "test": 0.3}  # of the concepts

Record = dict[str, Any]


def validated(path: Path, agreed: float = AGREED) -> list[Record]:
    """The captions of a file with whose label so large a share of their validators agrees.

    Raises: InputNotFound, DataError.
    """
    rows = enumerate(read_json_lines(path), 1)
    return [record for row, record in rows if example(path, row, record, lambda one: is_validated(one, agreed))]


def concept_split(
    records: Sequence[Record], seed: int = 0, shares: Mapping[str, float] = SHARES
) -> dict[str, list[Record]]:
    """Captions by the split that both of their concepts fell to; those of two splits are dropped.

    Concepts are shuffled and cut into shares. Captions keep their order, and are told their concepts as "subj" and
    "obj".

    Raises: DataError: a caption does not tell its concepts, or a split has none.
    """
    pairs = [concepts(record) for record in records]
    names = sorted({name for pair in pairs for name in pair})
    random.Random(seed).shuffle(names)
    first, second = (round(share * len(names)) for share in (shares["train"], shares["train"] + shares["dev"]))
    of = {name: "train" if n < first else "dev" if n < second else "test" for n, name in enumerate(names)}
    found: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for record, (subject, thing) in zip(records, pairs, strict=True):
        if of[subject] == of[thing]:
            found[of[subject]].append({**record, "subj": subject, "obj": thing})
    if empty := [split for split, kept in found.items() if not kept]:
        raise DataError(f"{len(names)} concepts leave no caption for {', '.join(empty)}: another seed may")
    return found


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Raises: DiskError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode())
