"""Encoders, tasks, training and evaluation: everything that reads region features from a store.

Names are loaded when they are first used; importing this package costs nothing.
"""

import importlib

_HOME = {
    name: module
    for module, names in {
        "encoders": (
            "Encoder EncoderConfig EncoderOutput InputError from_volta list_encoders load_encoder load_tokenizer "
            "save_encoder score_pairs"
        ),
        "tasks": "Example Selection list_tasks load_task",
    }.items()
    for name in names.split()
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
