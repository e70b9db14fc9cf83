"""The label map of VinVL: names of classes and attributes with their numbers, which count from 1 after background."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .base import MISSHAPEN, BadRow, Notes, Vocabularies
from .rows import lines

_LISTS = {"classes": "label_to_idx", "attributes": "attribute_to_idx"}
_NONE = -1  # the attribute id of a region without one


@dataclass
class LabelMap:
    """Names to ids, which count from 0 here, background left out.

    Attributes:
        classes, attributes: name -> id.
        given: a file gives them; else they are of the names that occur.
    """

    classes: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=dict)
    given: bool = True

    def __post_init__(self) -> None:
        self._classes, self._attributes = (
            {i: n for n, i in names.items()} for names in (self.classes, self.attributes)
        )

    @classmethod
    def of(cls, folder: Path) -> LabelMap:
        """That of a *.json with label_to_idx; without one, the names that occur in predictions.tsv, sorted."""
        for file in filter(Path.is_file, sorted(folder.glob("*.json"))):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                if isinstance(content, dict) and "label_to_idx" in content:
                    return cls(*(_from_one(content.get(name) or {}) for name in _LISTS.values()))
            except MISSHAPEN:
                continue  # another kind of file
        return cls._occurring(folder / "predictions.tsv")

    @classmethod
    def _occurring(cls, file: Path) -> LabelMap:
        classes: set[str] = set()
        attributes: set[str] = set()
        for _, line in lines(file) if file.is_file() else ():
            try:
                for entry in json.loads(line.partition(b"\t")[2])["objects"]:
                    if "class" in entry and "class_id" not in entry:  # those with a number are not numbered anew
                        classes.add(str(entry["class"]))
                    if "attr_id" not in entry:
                        attributes.update(name for name, _ in _scored(entry))
            except MISSHAPEN:
                continue  # reported when it is read
        names = (sorted(classes), sorted(attributes))
        return cls(*({name: i for i, name in enumerate(some)} for some in names), given=False)

    @classmethod
    def for_vocabularies(cls, vocabularies: Vocabularies) -> LabelMap:
        return cls(*({name: i for i, name in enumerate(vocabularies.get(what) or ())} for what in _LISTS))

    def vocabularies(self) -> dict[str, list[str]]:
        """Lists of the names, where each has a number of its own and none is missing."""
        found = {"classes": self.classes, "attributes": self.attributes}
        whole = {what: names for what, names in found.items() if sorted(names.values()) == list(range(len(names)))}
        return {what: sorted(names, key=names.get) for what, names in whole.items() if names}

    def to_json(self) -> str:
        numbered = {name: {k: v + 1 for k, v in getattr(self, what).items()} for what, name in _LISTS.items()}
        return json.dumps(numbered, ensure_ascii=False, indent=1)

    def named_class(self, number: int) -> dict[str, Any]:
        """What says a class in a row."""
        name = self._classes.get(number)
        return {"class": name, "class_id": number} if name is not None else {"class_id": number}

    def named_attribute(self, number: int) -> dict[str, Any]:
        name = self._attributes.get(number)
        return {"attributes": [name], "attr_id": number} if name is not None else {"attr_id": number}

    def class_ids(self, objects: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The class_ids of a row's objects, where they have classes. Raises: BadRow: a name is not in the map."""
        if objects and all("class_id" in o for o in objects):
            return {"class_ids": np.array([o["class_id"] for o in objects])}
        if not objects or not all("class" in o for o in objects):
            return {}
        unknown = [o["class"] for o in objects if str(o["class"]) not in self.classes]
        if unknown:
            raise BadRow(f"the label map has no class {unknown[0]!r}", "value_range")
        return {"class_ids": np.array([self.classes[str(o["class"])] for o in objects])}

    def attributes_of(self, objects: Sequence[Mapping[str, Any]], notes: Notes) -> dict[str, np.ndarray]:
        """The most probable attribute of each object; those after it have no place."""
        if objects and all("attr_id" in o for o in objects):
            fields = {"attr_ids": np.array([o["attr_id"] for o in objects])}
            if all("attr_scores" in o for o in objects):
                fields["attr_probs"] = np.array([o["attr_scores"][0] for o in objects], np.float32)
            return fields
        if not any("attributes" in o for o in objects):
            return {}
        ranked = [sorted(_scored(o), key=lambda pair: -pair[1]) for o in objects]
        if any(len(pairs) > 1 for pairs in ranked):
            notes.drop("attributes after the first of each box")
        best = [pairs[0] if pairs else (None, 0.0) for pairs in ranked]
        unknown = [name for name, _ in best if name is not None and name not in self.attributes]
        if unknown:
            raise BadRow(f"the label map has no attribute {unknown[0]!r}", "value_range")
        return {
            "attr_ids": np.array([_NONE if name is None else self.attributes[name] for name, _ in best]),
            "attr_probs": np.array([score for _, score in best], np.float32),
        }


def _from_one(numbered: Mapping[str, Any]) -> dict[str, int]:
    """Raises: ValueError: they count from 0, so that they are not VinVL's."""
    ids = {name: int(number) - 1 for name, number in numbered.items() if name != "__background__"}
    if min(ids.values(), default=0) < 0:
        raise ValueError("numbers below 1")
    return ids


def _scored(entry: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Attributes that an object has; where the score is 0, the name is arbitrary."""
    names = entry.get("attributes") or []
    scores = entry.get("attr_scores") or []
    return [(str(name), float(score)) for name, score in zip(names, scores, strict=False) if score > 0]
