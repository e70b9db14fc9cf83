"""Whether pictures that a model trains on are among those that it is tested on, by their names and by their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from cache import RegionStore, open_store

from .data import find_keys
from .report_overlap import name_forms, read_pictures
from .tasks import Example

AT_ONCE = 256  # records


class TrainingPictures:
    """The pictures of stores and lists.

    Args:
        where: stores as `open_store` takes them, and files with one name or path a line.
        with_bytes: look at what digests the records of the stores have of the images they came from.

    Raises: InputNotFound, DataError, StoreNotFound, StoreDamaged.
    """

    def __init__(self, where: Sequence[str], with_bytes: bool):
        self._names: set[str] = set()
        self._digests: set[bytes] = set()
        for one in where:
            if os.path.isfile(one):
                self._names |= read_pictures(one)
                continue
            store = open_store(one, verify="never")  # the digests alone are read
            self._names |= {form for key in store.keys() for form in name_forms(key)}
            if with_bytes:
                self._digests |= set(_digests(store, list(store.keys())).values())

    def shared(self, examples: Iterable[Example], store: RegionStore | None) -> list[str]:
        """The pictures of examples that are among them, by their usual keys.

        Args:
            store: of the pictures of the examples, whose bytes are compared as well; None compares names alone.
        """
        pictures = list(dict.fromkeys(keys for example in examples for keys in example.images))
        found = {forms[0] for forms in pictures if any(not self._names.isdisjoint(name_forms(key)) for key in forms)}
        if store is not None and self._digests:
            places = {key: forms[0] for forms, key in zip(pictures, find_keys(store, pictures), strict=True) if key}
            found |= {places[key] for key, digest in _digests(store, list(places)).items() if digest in self._digests}
        return [forms[0] for forms in pictures if forms[0] in found]


def _digests(store: RegionStore, keys: Sequence[str]) -> dict[str, bytes]:
    """Key -> digest of the encoded image, of the records that have one."""
    found = {}
    for start in range(0, len(keys), AT_ONCE):
        records = store.get_many(keys[start : start + AT_ONCE])
        found |= {one.key: one.source_digest for one in records if one.source_digest}
    return found
