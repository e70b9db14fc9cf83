"""What is left of a store, whatever happened to its files: the first half of `repair`. Changes nothing."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import StoreDamaged
from .files import DAMAGED
from .index import FILE as MERGED_INDEX
from .index import Entry, Index
from .manifest import FILE as MANIFEST
from .manifest import Manifest, Shard, signed
from .salvage import Salvage, examine
from .shard import file_checksum
from .states import FAILURE, REPLACED, overrides

SHARD_FILE = re.compile(r"shard-(\d{5,18})\.(lmdb|idx)")


@dataclass
class Part:
    """One shard.

    Attributes:
        shard: as the manifest describes it; only its number is known if `listed` is not set.
        source: the file to read its states from.
        intact: the file is the one that the manifest describes.
        listed: the manifest knows the shard.
        index: its .idx, if that is sound and, as far as the manifest tells, its own.
        salvage: what is left of it.
    """

    shard: Shard
    source: Path
    intact: bool
    listed: bool
    index: Index | None
    salvage: Salvage


class Diagnosis:
    """What is left of a store.

    Attributes:
        manifest: None if it cannot be read.
        trusted: the manifest is undamaged; else what it says of files is not used.
        why: what is wrong with it, if it is not.
        merged: index.idx, if it is sound.
        parts: every shard that the manifest or a file tells of, in their order.
        features: dtype and dimension of the features.
        strangers: numbers of shards that the manifest does not know and whose features are others.
        lost: keys whose state cannot be read, in order.

    Raises:
        StoreDamaged: nothing can be read, or the store has another format version.
    """

    def __init__(self, path: Path, on_progress: Callable[[int, int], None]):
        self.path = path
        self.manifest, self.trusted, self.why = _read_manifest(path)
        self.merged = _sound_index(path / MERGED_INDEX)
        shards = self._shards()
        sources = {number: _source(path / shard.file) for number, shard in shards.items()}
        total, done = sum(map(_size, sources.values())), 0
        self.parts = []
        for number, shard in shards.items():
            self.parts.append(self._examine(shard, sources[number]))
            done += _size(sources[number])
            on_progress(done, total)
        self._settle_features()
        self._settle_states()

    def _shards(self) -> dict[int, Shard]:
        """Every shard that the manifest, or a file, tells of."""
        shards = {shard.number: shard for shard in self.manifest.shards} if self.manifest else {}
        if not self.trusted:
            shards = {number: Shard(number, provenance=shard.provenance) for number, shard in shards.items()}
            shards |= {number: Shard(number) for number in (self.merged.covers if self.merged else ())}
        for name in os.listdir(self.path):
            match = SHARD_FILE.fullmatch(name)
            if match and (match[2] == "lmdb" or not self.trusted):
                shards.setdefault(int(match[1]), Shard(int(match[1])))
        return dict(sorted(shards.items()))

    def _examine(self, shard: Shard, source: Path) -> Part:
        index = _sound_index(self.path / shard.index_file)
        if index is not None and self.trusted and f"{index.checksum:016x}" != shard.index_checksum:
            index = None  # of an older state of the shard, or of another one
        sealed = self.trusted and shard.sealed
        intact = sealed and _size(source) == shard.bytes and f"{file_checksum(source):016x}" == shard.checksum
        expected = shard.records + shard.failures if sealed else (None if index is None else len(index))
        known = dict(index.states()) if index is not None else self._merged_states(shard)
        complete = intact and index is not None and len(index) == expected
        salvage = examine(source, shard.number, known, complete, expected, self.trusted)
        listed = bool(self.manifest) and shard.number in {other.number for other in self.manifest.shards}
        return Part(shard, source, intact, listed, index, salvage)

    def _merged_states(self, shard: Shard) -> dict[bytes, Entry]:
        """What index.idx says of a shard, if it was made from that shard's index."""
        covered = self.merged.covers.get(shard.number) if self.merged else None
        if covered is None or (self.trusted and f"{covered:016x}" != shard.index_checksum):
            return {}
        return {key: entry for key, entry in self.merged.states() if entry.shard == shard.number}

    def _settle_features(self) -> None:
        """Which features the store has; records with others are none of its own."""
        counts = Counter(
            found for part in self.parts if part.listed or not self.trusted for found in part.salvage.features.values()
        )
        said = (self.manifest.feature_dtype, self.manifest.dim) if self.manifest else None
        if not said and not counts:
            raise StoreDamaged(self.path, "neither its manifest nor any record can be read", "extract again")
        self.features = said if said and (said in counts or not counts) else counts.most_common(1)[0][0]
        self.strangers = set()
        for part in self.parts:
            if self.trusted and not part.listed and set(part.salvage.features.values()) - {self.features}:
                self.strangers.add(part.shard.number)
                part.salvage = Salvage()
            part.salvage.refuse_features(self.features)

    def _settle_states(self) -> None:
        """Which keys are lost: those whose holding state is broken, unless another shard has the same one.

        An earlier state of such a key must not come back in its place, so it is dropped.
        """
        salvages = [part.salvage for part in self.parts]
        unsure = set().union(*(salvage.unmarked for salvage in salvages))
        self.lost = []
        for key in sorted(unsure.union(*(salvage.broken for salvage in salvages))):
            states = [salvage.states.get(key) or salvage.broken.get(key) for salvage in salvages]
            left = _holding(salvage.states.get(key) for salvage in salvages)
            holders = {_content(_holding(states))}
            if key in unsure:
                pairs = zip(states, salvages, strict=True)
                holders.add(_content(_holding(_marked(state) if key in s.unmarked else state for state, s in pairs)))
            if left is None or holders != {_content(left)}:
                self.lost.append(key)
                for salvage in salvages:
                    salvage.drop(key)


def _read_manifest(path: Path) -> tuple[Manifest | None, bool, str]:
    """The manifest, whether it is undamaged, and what is wrong with it."""
    try:
        return Manifest.load(path), True, ""
    except StoreDamaged as error:
        file = path / MANIFEST
        data = file.read_bytes() if file.is_file() else b""
        if signed(data) == data:
            raise  # it is what was written, by a roivault of another format version
        for altered in (data, _without_shards(data)):
            try:
                return Manifest.from_bytes(signed(altered), file), False, error.why
            except StoreDamaged:
                pass
        return None, False, error.why


def _without_shards(data: bytes) -> bytes:
    """What else a damaged manifest says; nothing if it is no JSON any more."""
    try:
        values = {**json.loads(signed(data)), "shards": []}
    except (ValueError, RecursionError):
        return b""
    return json.dumps({"checksum": "0" * 16, **values}, indent=1).encode()


def _sound_index(path: Path) -> Index | None:
    try:
        return Index.open(path)
    except StoreDamaged:
        return None


def _source(file: Path) -> Path:
    """The file of a shard; or that which a repair had moved aside when it was killed."""
    asides = [] if file.exists() else sorted(file.parent.glob(f"{file.name}*{DAMAGED}"), key=os.path.getmtime)
    return asides[-1] if asides else file


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _holding(states: Iterable[Entry | None]) -> Entry | None:
    """Of the states of a key in the order of their shards, the one that holds."""
    holder = None
    for state in states:
        if state is not None and (holder is None or overrides(holder.flags, state.flags)):
            holder = state
    return holder


def _marked(state: Entry | None) -> Entry | None:
    return state and state._replace(flags=state.flags | REPLACED)


def _content(state: Entry) -> tuple[int, int, int]:
    return *state.content, state.flags & FAILURE
