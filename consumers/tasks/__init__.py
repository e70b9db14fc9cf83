"""The tasks: where their annotations are, and how a row becomes a text, keys of pictures and what is right.

    task = load_task("xvnli", "annotations/")
    examples = task.load(Selection("test", "ar"))

A new task is one module with a class like those here, and one line in TASKS.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from cache import UsageError

from .base import Count, Example, Selection, Task

TASKS = {
    "xvnli": "xvnli:Xvnli",
    "gqa": "gqa:Gqa",
    "xgqa": "gqa:Xgqa",
    "nlvr2": "nlvr2:Nlvr2",
    "marvl": "nlvr2:Marvl",
    "flickr30k": "retrieval:Flickr30k",
    "xflickrco": "retrieval:XflickrCo",
    "wit": "retrieval:Wit",
    "multi30k": "retrieval:Multi30k",
    "maxm": "maxm:Maxm",
    "vqa2": "vqa:Vqa2",
    "vq2a-coco": "vqa:Vq2aCoco",
    "vq2a-cc3m": "vqa:Vq2aCc3m",
    "vsr": "vsr:Vsr",
    "vsr-zeroshot": "vsr:VsrZeroshot",
    "vsr-left-right": "vsr:VsrLeftRight",
    "vsr-frames": "vsr:VsrFrames",
    "xm3600": "xm3600:Xm3600",
    "xm3600-captions": "xm3600:Xm3600Captions",
    "scenes": "scenes:Scenes",
    "scene-pairs": "scenes:ScenePairs",
}

__all__ = ["Count", "Example", "Selection", "Task", "list_tasks", "load_task"]


def list_tasks() -> list[str]:
    """Names that `load_task` knows."""
    return list(TASKS)


def load_task(name: str, annotations: str | Path, **options: Any) -> Task:
    """A task over a folder of annotations; `options` are those of its class.

    Raises: UsageError: there is no such task.
    """
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; choose from {', '.join(TASKS)}")
    module, _, cls = TASKS[name].partition(":")
    return getattr(import_module(f".{module}", __name__), cls)(annotations, **options)
