"""manifest.json: what a store is made of. Replaced as a whole, and carries a checksum of its own bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import xxhash

from .errors import StoreDamaged, StoreNotFound, UsageError
from .files import replace_file
from .regions import FEATURE_DTYPES

FILE = "manifest.json"
FORMAT = 1  # major version of the store format; a roivault reads every store of its own
_HEAD = b'{\n "checksum": "'
_ZEROS = b"0" * 16
HEAD_BYTES = len(_HEAD) + len(_ZEROS)  # with the checksum: another manifest begins otherwise
_LARGEST = 1 << 60  # of any count or size


@dataclass(frozen=True)
class Shard:
    """One shard of a store. Counts, sizes and checksums are those of the sealed files, None while it is open.

    Attributes:
        number: its place in the order of shards. That of the last one is used again if it was removed empty.
        state: "open" (being written) or "sealed" (immutable).
        provenance: where its records were made: one dict for each different set-up that wrote to it.
        records, failures: states the shard holds, those that other shards override included.
        bytes, checksum: size and xxh3-64 of the shard file.
        index_bytes, index_checksum: the same of its index.
    """

    number: int
    state: str = "open"
    provenance: tuple[dict[str, Any], ...] = ()
    records: int | None = None
    failures: int | None = None
    bytes: int | None = None
    checksum: str | None = None
    index_bytes: int | None = None
    index_checksum: str | None = None

    @property
    def name(self) -> str:
        return f"shard-{self.number:05d}"

    @property
    def file(self) -> str:
        return self.name + ".lmdb"

    @property
    def index_file(self) -> str:
        return self.name + ".idx"

    @property
    def sealed(self) -> bool:
        return self.state == "sealed"


@dataclass(frozen=True)
class Manifest:
    """What a store is made of.

    Attributes:
        feature_dtype: float16, float32 or bfloat16.
        dim: feature dimension; None until there is a record.
        fingerprint: every choice that may change a byte of a record; None when the writer gave none.
        vocabularies: "classes" and "attributes": the names that class_ids and attr_ids index.
        shards: in order.
        format: major version of the store format.
    """

    feature_dtype: str
    dim: int | None = None
    fingerprint: dict[str, Any] | None = None
    vocabularies: dict[str, list[str]] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    format: int = FORMAT

    @property
    def sealed(self) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.sealed)

    @property
    def open(self) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if not shard.sealed)

    def with_shard(self, shard: Shard) -> Manifest:
        """This manifest with `shard` added, or in the place of the one with its number."""
        others = [s for s in self.shards if s.number != shard.number]
        return replace(self, shards=tuple(sorted([*others, shard], key=lambda s: s.number)))

    def only(self, numbers: Collection[int]) -> Manifest:
        """This manifest with some of its shards."""
        return replace(self, shards=tuple(s for s in self.shards if s.number in numbers))

    def to_bytes(self) -> bytes:
        return signed(json.dumps({"checksum": _ZEROS.decode(), **asdict(self)}, indent=1).encode() + b"\n")

    def save(self, store: Path) -> None:
        """Raises: DiskError."""
        replace_file(store / FILE, self.to_bytes())

    @classmethod
    def load(cls, store: Path) -> Manifest:
        """Read the manifest of a store directory.

        Raises:
            StoreNotFound: there is no store.
            StoreDamaged: the manifest was altered, or is of another major format version.
        """
        path = store / FILE
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if any(store.glob("shard-*.lmdb")):
                raise StoreDamaged(path, "the manifest is missing") from None
            raise StoreNotFound(f"there is no store at {store}: {path} does not exist") from None
        except IsADirectoryError:
            raise StoreDamaged(path, "it is a directory") from None
        return cls.from_bytes(data, path)

    @classmethod
    def from_bytes(cls, data: bytes, path: Path | str) -> Manifest:
        """Read a manifest; `path` is what errors name. Raises: StoreDamaged."""
        if data != signed(data):
            raise StoreDamaged(path, "its checksum is wrong: it was altered or cut short")
        try:
            values = json.loads(data)
            if values["format"] != FORMAT:
                raise StoreDamaged(
                    path, f"its format is {values['format']!r}, roivault here reads {FORMAT}",
                    "use the roivault that made it",
                )  # fmt: skip
            shards = (_known(Shard, shard) for shard in values.pop("shards"))
            shards = tuple(Shard(**{**shard, "provenance": tuple(shard["provenance"])}) for shard in shards)
            manifest = cls(shards=shards, **_known(cls, values))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreDamaged(path, f"it is no manifest ({type(error).__name__}: {error})") from None
        if why := manifest._implausible():
            raise StoreDamaged(path, why)
        return manifest

    def _implausible(self) -> str | None:
        """What no writer would have written: a manifest from elsewhere may hold anything."""
        if self.feature_dtype not in FEATURE_DTYPES or not (self.dim is None or _is_count(self.dim)):
            return f"its features are {self.dim!r} x {self.feature_dtype!r}"
        if not isinstance(self.fingerprint, (dict, type(None))) or not isinstance(self.vocabularies, dict):
            return "its fingerprint or its vocabularies are no objects"
        for name, words in self.vocabularies.items():
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                return f"its vocabulary {name!r} is no list of names"
        for place, shard in enumerate(self.shards):
            if not _is_count(shard.number):
                return f"its shard {place} has the number {shard.number!r}"
            if shard.state not in ("open", "sealed") or not all(isinstance(made, dict) for made in shard.provenance):
                return f"its shard {shard.number} is {shard.state!r}, made by {shard.provenance!r}"
            counts = (shard.records, shard.failures, shard.bytes, shard.index_bytes)
            checksums = (shard.checksum, shard.index_checksum)
            if shard.sealed and not (all(map(_is_count, counts)) and all(map(_is_checksum, checksums))):
                return f"its shard {shard.number} has the counts {counts} and the checksums {checksums}"
        numbers = [shard.number for shard in self.shards]
        return None if numbers == sorted(set(numbers)) else f"the numbers of its shards are {numbers}"


def signed(data: bytes) -> bytes:
    """The bytes of a manifest with the checksum that they should have."""
    body = data[HEAD_BYTES:]
    return _HEAD + xxhash.xxh3_64_hexdigest(_HEAD + _ZEROS + body).encode() + body


def as_json(name: str, value: Any) -> Any:
    """A value as it is read back from a manifest: tuples are lists there. Raises: UsageError: it cannot be stored."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the {name} cannot be stored as JSON: {error}") from None


def signature(store: Path) -> tuple[int, int, int] | None:
    """Changes whenever the manifest is replaced; None when there is none."""
    try:
        stat = os.stat(store / FILE)
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _known(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Without what a later minor version may have added."""
    return {f.name: values[f.name] for f in fields(cls) if f.name in values}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_checksum(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None
