"""What a store says of itself, in short."""

from __future__ import annotations

from cache import Failure, open_store


def keys(path) -> list[str]:
    return sorted(open_store(path).keys())


def states(path) -> dict[str, str]:
    store = open_store(path)
    return {key: "record" for key in store.keys()} | {f.key: f.kind for f in store.failures()}


def failed(key: str, kind: str = "missing") -> Failure:
    return Failure(key, kind, "m")
