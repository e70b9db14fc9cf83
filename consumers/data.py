"""Examples of a task joined with a store: tokens and regions, as the inputs of an encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cache import MissingKeys, RegionStore, StoreMismatch, UsageError
from cache.collate import Collation
from cache.dataset import RegionDataset

from .encoders import EncoderConfig, Tokenizer
from .tasks import Example

SAMPLE = 64  # images that are looked at before anything starts


class Inputs(NamedTuple):
    """What `Encoder` takes: input_ids, input_mask i64 [B, L]; features [B, R, d], locations [B, R, k], region_mask bool
    [B, R]."""

    input_ids: Tensor
    input_mask: Tensor
    features: Tensor
    locations: Tensor
    region_mask: Tensor

    def to(self, device: torch.device | str) -> Inputs:
        return Inputs(*(tensor.to(device, non_blocking=True) for tensor in self))

    def pinned(self) -> Inputs:
        """In memory that a GPU copies from by itself."""
        return Inputs(*(tensor.pin_memory() for tensor in self))


class TaskData:
    """Examples whose pictures a store holds.

    Args:
        examples: in any order; their places are what `inputs` is asked for.
        store: read-only, features of the dimension that the encoder reads.
        config: of the encoder, which says how regions are collated.
        tokenizer: of the encoder.
        max_tokens: length at which texts are cut.
        others: so many more pictures of the store are added to `keys`, if it has them.
        shuffled: give each picture the regions of another one, so that nothing but the texts is left to go by.

    Attributes:
        examples: as given.
        images: i64 [N, P], the places in `keys` of each example's P pictures.
        keys: the keys of the different pictures, as this store has them.
        forms: how many pictures were found under which form of their key, 0 being the usual one.
        notes: what is unusual about the store for this encoder.

    Raises:
        MissingKeys: names the pictures that the store lacks under all forms.
        StoreMismatch: its features are not what the encoder reads.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        store: RegionStore,
        config: EncoderConfig,
        tokenizer: Tokenizer,
        max_tokens: int,
        others: int = 0,
        shuffled: bool = False,
    ):
        self.examples, self.store, self.config = examples, store, config
        places: dict[tuple[str, ...], int] = {}
        rows = [[places.setdefault(forms, len(places)) for forms in example.images] for example in examples]
        self.images = np.array(rows, np.int64)
        self.keys, self.forms = resolve_keys(store, list(places))
        known = set(self.keys)
        self.keys += islice((key for key in store.keys() if key not in known), others)
        if shuffled:
            self.keys = exchanged(self.keys)
        self.notes = check_store(store, self.keys, config)
        self._collate = Collation(**config.collation)
        self._regions = RegionDataset(store, self.keys)
        self._tokens = tokenizer.rows([example.text for example in examples], max_tokens)
        self._pad = tokenizer.pad

    def __len__(self) -> int:
        return len(self.examples)

    def inputs(self, texts: Sequence[int], images: Sequence[int]) -> Inputs:
        """Pairs of the text of an example and a picture: places in `examples` and in `keys`, equally many.

        Raises: CorruptRecord, StoreDamaged, DiskError.
        """
        return Inputs(*self.text(texts), *self.regions(images))

    def text(self, texts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Ids and mask [B, L], L being the longest of them."""
        return self._pad([self._tokens[i] for i in texts])

    def regions(self, images: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Features, locations and mask of pictures by their places in `keys`.

        Raises: CorruptRecord, StoreDamaged, DiskError.
        """
        batch = self._collate(self._regions.boxes_and_features(list(images)))
        return batch.features, batch.locations, batch.mask


def exchanged(keys: Sequence[str]) -> list[str]:
    """The keys in such an order that each stands in the place of another one, the same order every time.

    Raises: UsageError: there is one only.
    """
    if len(keys) < 2:
        raise UsageError("the regions of one picture alone cannot be exchanged for those of another")
    order = np.random.default_rng(0).permutation(len(keys))
    found = np.empty(len(keys), np.int64)
    found[order] = np.roll(order, 1)
    return [keys[place] for place in found]


def resolve_keys(store: RegionStore, pictures: Sequence[tuple[str, ...]]) -> tuple[list[str], dict[int, int]]:
    """The key under which a store has each picture, of the forms given for it, and how many were found in which form.

    Raises: MissingKeys: names, in their usual form, all pictures that it has in none.
    """
    keys = find_keys(store, pictures)
    if lost := [forms[0] for forms, key in zip(pictures, keys, strict=True) if key is None]:
        raise MissingKeys(lost, ", ".join(map(str, store.paths)), "other forms of the keys were tried as well")
    return keys, dict(sorted(Counter(map(tuple.index, pictures, keys)).items()))


def find_keys(store: RegionStore, pictures: Sequence[tuple[str, ...]]) -> list[str | None]:
    """The key under which a store has each picture, the first of its forms that is there; None where none is."""
    keys: list[str | None] = [None] * len(pictures)
    for form in range(max(map(len, pictures), default=0)):
        asked = [i for i, forms in enumerate(pictures) if keys[i] is None and form < len(forms)]
        there = store.places([pictures[i][form] for i in asked])[:, 0] >= 0
        for i in np.flatnonzero(there):
            keys[asked[i]] = pictures[asked[i]][form]
    return keys


def check_store(store: RegionStore, keys: Sequence[str], config: EncoderConfig) -> list[str]:
    """Whether the regions of a store are what an encoder was trained to read, judged by a sample of the images.

    Returns: what is unusual, though it can be read.
    Raises: StoreMismatch: another dimension, or features of length 1 for an encoder that reads them as they came.
    """
    step = max(1, len(keys) // SAMPLE)
    sample = store.get_many(list(dict.fromkeys(keys[::step]))[:SAMPLE])
    where = ", ".join(map(str, store.paths))
    wrong = next((one for one in sample if one.features.shape[1] != config.feature_dim), None)
    if wrong is not None:
        raise StoreMismatch(
            f"{config.name} reads features of dimension {config.feature_dim}, but {wrong.key!r} in {where} has "
            f"{wrong.features.shape[1]}: extract with the detector that the encoder was trained with"
        )
    counts = np.array([len(one) for one in sample])
    lengths = np.concatenate([np.linalg.norm(one.features.astype(np.float32), axis=1) for one in sample])
    if not config.normalize and len(lengths) and np.abs(lengths - 1).max() < 1e-2:
        raise StoreMismatch(
            f"the features in {where} have been divided by their length, and {config.name} reads them as the detector "
            "gave them: extract or convert them anew without normalisation"
        )
    notes = []
    if (counts == 0).any() and config.global_region == "none":
        nothing = sample[int(np.flatnonzero(counts == 0)[0])].key
        raise StoreMismatch(f"{nothing!r} in {where} has no regions, and {config.name} adds no mean region")
    most = counts.max(initial=0)
    if most > config.regions:
        notes.append(f"pictures in {where} have up to {most} regions, of which {config.name} reads {config.regions}")
    if most < config.regions:
        notes.append(f"pictures in {where} have at most {most} regions, and {config.name} expects {config.regions}")
    return notes
