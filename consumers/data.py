"""Examples of a task joined with a store: tokens and regions, as the inputs of an encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cache import DataError, MissingKeys, Regions, RegionStore, StoreMismatch, UsageError
from cache.collate import Collation
from cache.dataset import RegionDataset

from .encoders import EncoderConfig, Tokenizer
from .encoders.tags import packed
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
        tags: the names of a picture's objects follow the text: one of `encoders.tags.RULES` by which they are cut, or
            None for texts alone.

    Attributes:
        examples: as given.
        images: i64 [N, P], the places in `keys` of each example's P pictures.
        keys: the keys of the different pictures, as this store has them.
        forms: how many pictures were found under which form of their key, 0 being the usual one.
        notes: what is unusual about the store for this encoder.

    Raises:
        MissingKeys: names the pictures that the store lacks under all forms.
        StoreMismatch: its features are not what the encoder reads, or it has no objects to name.
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
        tags: str | None = None,
    ):
        self.examples, self.store, self.config, self.tags = examples, store, config, tags
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
        texts = [example.text for example in examples]
        tokenizer.check(max_tokens)
        self._tokens = tokenizer.rows(texts, max_tokens) if tags is None else tokenizer.pieces(texts)
        self._names = ObjectNames(store, self.keys, tokenizer) if tags else None
        self._ends, self._most = tokenizer.ends if tags else (), max_tokens
        self._pad = tokenizer.pad

    def __len__(self) -> int:
        return len(self.examples)

    def inputs(self, texts: Sequence[int], images: Sequence[int]) -> Inputs:
        """Pairs of the text of an example and a picture: places in `examples` and in `keys`, equally many.

        Raises: CorruptRecord, StoreDamaged, DiskError.
        """
        return Inputs(*self.text(texts, images), *self.regions(images))

    def text(self, texts: Sequence[int], images: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Ids and mask [B, L], L being the longest of them, with the tags of the images where there are any.

        Raises: CorruptRecord, StoreDamaged, DiskError; DataError: an object that has no name.
        """
        if self._names is None:
            return self._pad([self._tokens[i] for i in texts])
        names, each = self._names(images), self.images.shape[1]
        rows: list[list[int]] = []
        for start in range(0, len(texts), each):
            some = names[start : start + each]
            rows += packed(self._tokens[texts[start]], some, self._most, *self._ends, rule=self.tags)
        return self._pad(rows)

    def regions(self, images: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Features, locations and mask of pictures by their places in `keys`.

        Raises: CorruptRecord, StoreDamaged, DiskError.
        """
        batch = self._collate(self._regions.boxes_and_features(list(images)))
        return batch.features, batch.locations, batch.mask


class ObjectNames:
    """The names of the objects in pictures as token ids, in the order of the regions, those that occur twice included.

    Of a name with synonyms, as in "stop sign,stopsign", it is the first.

    Args:
        store: with classes and their vocabulary.
        keys: of the pictures.

    Raises: StoreMismatch: it has none.
    """

    def __init__(self, store: RegionStore, keys: Sequence[str], tokenizer: Tokenizer):
        self._store, self._keys, self._tokenizer = store, keys, tokenizer
        self._words = [name.split(",")[0] for name in store.manifest.vocabularies.get("classes", ())]
        self._known: dict[int, list[int]] = {}
        sample = store.get_many(keys[:1])
        if not self._words or any(one.class_ids is None for one in sample):
            lacks = "no names of classes" if not self._words else "no classes of its regions"
            raise StoreMismatch(
                f"the texts are to be followed by the names of the objects in the pictures, and {_where(store)} has "
                f"{lacks}: extract with a preset that detects objects, such as vinvl-x152, or convert a cache "
                "that has them"
            )

    def __call__(self, images: Sequence[int]) -> list[list[int]]:
        """Of pictures by their places in `keys`. Raises: CorruptRecord, StoreDamaged, DiskError, DataError."""
        if new := [image for image in dict.fromkeys(images) if image not in self._known]:
            records = self._store.get_many([self._keys[image] for image in new])
            names = self._tokenizer.pieces([self._names(one) for one in records])
            self._known.update(zip(new, names, strict=True))
        return [self._known[image] for image in images]

    def _names(self, one: Regions) -> str:
        ids = one.class_ids if one.class_ids is not None else ()
        if len(ids) and not (0 <= min(ids) and max(ids) < len(self._words)):
            where = _where(self._store)
            raise DataError(f"{one.key!r} in {where} has classes beyond the {len(self._words)} that have names")
        return " ".join(self._words[i] for i in ids)


def _where(store: RegionStore) -> str:
    return ", ".join(map(str, store.paths))


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
    where = _where(store)
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
