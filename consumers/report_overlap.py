"""Whether the detector behind the features was trained on pictures that a task is tested on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache import DataError, RoivaultError, open_store

from .report_runs import Run, examples_of
from .tasks.files import open_text

VISUAL_GENOME = "Visual Genome"
COCO = "COCO's train2017"
DETECTORS = {
    "vg-": VISUAL_GENOME,
    "frcnn-vg": VISUAL_GENOME,
    "vsr-visualbert": COCO,
    "demo": "drawn scenes",
}  # how names of presets begin
FLICKR_TASKS = ("flickr30k", "multi30k", "xflickrco", "xvnli")
COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{12})")

ON_VISUAL_GENOME = {
    "gqa": "its pictures for training are Visual Genome's; those of test-dev (n161313) have names that tell no origin",
    "xflickrco": "half of its test pictures are COCO's val2014, and about half of Visual Genome's are COCO's",
    "flickr30k": "its pictures are Flickr's, as Visual Genome's are; an overlap is not known",
    "open-images": "its pictures are Open Images', which are Flickr's, as Visual Genome's are; an overlap is not known",
    "coco": "its pictures are COCO's, and about half of Visual Genome's are, too",
    "web": "its pictures were gathered from the web; an overlap is not known",
}
SAME_AS = {"xgqa": "gqa", "multi30k": "flickr30k", "xvnli": "flickr30k", "nlvr2": "web", "marvl": "web", "wit": "web"}
SAME_AS |= {name: "coco" for name in ("vsr", "vsr-zeroshot", "vsr-left-right", "vsr-frames")}
SAME_AS |= {"maxm": "open-images", "vqa2": "coco", "vq2a-coco": "coco", "vq2a-cc3m": "web"}


@dataclass(frozen=True)
class Overlap:
    """Test pictures of a task that are among those a detector was trained on."""

    task: str
    part: str
    pictures: int
    shared: int
    some: tuple[str, ...]


def warnings(runs: Sequence[Run]) -> list[str]:
    """A sentence for each task: what its test pictures and the detector's training pictures have in common."""
    found = {}
    presets = {store: _preset(store) for store in dict.fromkeys(store for run in runs for store in run.stores)}
    for task in dict.fromkeys(run.task for run in runs):
        stores = dict.fromkeys(store for run in runs if run.task == task for store in run.stores)
        for preset in dict.fromkeys(presets[store] for store in stores) or [None]:
            data = next((data for start, data in DETECTORS.items() if preset and preset.startswith(start)), None)
            if data == VISUAL_GENOME or preset is None:
                who = f"the detector {preset} was" if preset else "if the detector was, as the published ones were,"
                fact = ON_VISUAL_GENOME.get(SAME_AS.get(task, task), "where its pictures are from is not known here")
                found[f"{task}: {who} trained on Visual Genome: {fact}."] = None
            elif data == COCO and SAME_AS.get(task) == "coco":
                found[f"{task}: the detector {preset} was trained on {COCO}, where most of its pictures are."] = None
            elif data is None:
                found[f"{task}: what pictures the detector {preset} was trained on is not known here."] = None
    return list(found)


def _preset(store: str) -> str | None:
    """The preset that made a store; None where that cannot be told."""
    try:
        return (open_store(store).manifest.fingerprint or {}).get("preset")
    except RoivaultError:
        return None


def read_pictures(path: str | Path) -> set[str]:
    """Ids of pictures, of a list with one name or path a line, or of Visual Genome's image_data.json, which also tells
    which of them are COCO's and under what number Flickr has them.

    Raises: InputNotFound, DataError.
    """
    with open_text(Path(path)) as file:
        text = file.read()
    try:
        rows = json.loads(text) if text.lstrip().startswith("[") else text.split("\n")
        found = {form for row in rows for form in _forms_of(row)}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is no list of pictures: {error}") from error
    if not found:
        raise DataError(f"{path} names no pictures")
    return found


def _forms_of(row: Any) -> set[str]:
    if not isinstance(row, dict):
        return name_forms(str(row).strip())
    kinds = (("", "image_id"), ("coco:", "coco_id"), ("flickr:", "flickr_id"))
    return {f"{kind}{row[name]}" for kind, name in kinds if row.get(name)}


def name_forms(name: str) -> set[str]:
    """Of a path or key: its stem, and the number that COCO knows it by."""
    stem = name.replace("\\", "/").rpartition("/")[2]
    stem = stem.rpartition(".")[0] or stem
    coco = COCO_NAME.fullmatch(stem)
    return {f"coco:{int(coco[1])}"} if coco else {stem} - {""}


def overlaps(runs: Sequence[Run], pictures: set[str]) -> tuple[list[Overlap], list[tuple[str, str]]]:
    """How many test pictures of each task and subset are among `pictures`, and (where, why) of what cannot be told."""
    seen: dict[tuple[str, str], dict[str, bool]] = {}
    failed = {}
    sets = dict.fromkeys((run.task, run.annotations, run.selection, run.eval_set) for run in runs if run.annotations)
    for task, folder, selection, eval_set in sets:
        try:
            examples = examples_of(task, folder, selection, eval_set)[1]
        except RoivaultError as error:
            failed[f"{task} {selection}"] = str(error)
            continue
        for example in examples:
            part = example.facts.get("subset", "")
            for keys in example.images:
                forms = {form for key in keys for form in name_forms(key)}
                if task in FLICKR_TASKS:
                    forms |= {f"flickr:{form}" for form in forms if form.isdigit()}
                seen.setdefault((task, part), {})[keys[0]] = not pictures.isdisjoint(forms)
    found = []
    for (task, part), hits in seen.items():
        shared = [key for key, hit in hits.items() if hit]
        found.append(Overlap(task, part, len(hits), len(shared), tuple(shared[:5])))
    return found, list(failed.items())
