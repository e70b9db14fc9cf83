"""Examples of a task joined with records of a store or pictures of a folder, as the batches of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cache import RegionStore

from ..data import exchanged, resolve_keys
from ..tasks import Example
from .base import Batch, Model


class Pictures(Protocol):
    """Where pictures are: a store, or a folder of images.

    Attributes:
        made_with: fingerprints of the stores.
    """

    made_with: Sequence[Mapping[str, Any]]

    def resolve(self, pictures: Sequence[tuple[str, ...]]) -> tuple[list[str], dict[int, int]]:
        """The key of each picture, and how many were found in which form. Raises: MissingKeys."""

    def get_many(self, keys: Sequence[str]) -> list[Any]:
        """What a model reads of each."""


class StoredPictures:
    """The records of a store."""

    def __init__(self, store: RegionStore):
        self._store = store

    @property
    def made_with(self) -> list[Mapping[str, Any]]:
        return [manifest.fingerprint or {} for manifest in self._store.manifests]

    def resolve(self, pictures: Sequence[tuple[str, ...]]) -> tuple[list[str], dict[int, int]]:
        return resolve_keys(self._store, pictures)

    def get_many(self, keys: Sequence[str]) -> list[Any]:
        return self._store.get_many(keys)


class ModelData:
    """As `consumers.data.TaskData` is for encoders.

    Args:
        examples: in any order; their places are what `inputs` is asked for.
        pictures: where what the model reads is.
        model: that makes batches of them.
        max_tokens: length at which texts are cut.
        shuffled: give each picture the record of another one.

    Attributes:
        examples: as given.
        images: i64 [N, P], the places in `keys` of each example's P pictures.
        keys: the keys of the different pictures, as they are there.
        forms: how many pictures were found under which form of their key, 0 being the usual one.
        notes: what is unusual.

    Raises:
        MissingKeys: names the pictures that are missing under all forms.
        StoreMismatch: they are not what the model reads.
    """

    def __init__(
        self, examples: Sequence[Example], pictures: Pictures, model: Model, max_tokens: int, shuffled: bool = False
    ):
        self.examples, self.notes = examples, []
        self._pictures, self._model, self._max_tokens = pictures, model, max_tokens
        places: dict[tuple[str, ...], int] = {}
        self.images = np.array([[places.setdefault(f, len(places)) for f in one.images] for one in examples], np.int64)
        self.keys, self.forms = pictures.resolve(list(places))
        if shuffled:
            self.keys = exchanged(self.keys)
        self.notes += dict.fromkeys(note for made in pictures.made_with for note in model.check_store(made))
        model.look_at(pictures.get_many(self.keys[:1])[0])

    def __len__(self) -> int:
        return len(self.examples)

    def inputs(self, texts: Sequence[int], images: Sequence[int]) -> Batch:
        """Pairs of an example and a picture: places in `examples` and in `keys`, equally many."""
        return self._model.batch([self.examples[row] for row in texts], self.records(images), self._max_tokens)

    def records(self, images: Sequence[int]) -> list[Any]:
        """Pictures by their places in `keys`."""
        return self._pictures.get_many([self.keys[place] for place in images])

    def text(self, texts: Sequence[int]) -> Batch:
        """Examples without their pictures, for models that look at both apart."""
        return self._model.text_batch([self.examples[row] for row in texts], self._max_tokens)
