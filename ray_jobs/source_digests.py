"""Are the images that a store was made from still what they were? Their digests against those in the records."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from cache import DataError, RegionStore, open_store
from cache.index import hash_keys
from extractor.images import DecodePolicy, ImageError

from .listing import SeenKeys
from .sources import Item, open_source

MOST_KEPT = 1000  # differences of each kind in a report; all are counted
DIFFERENCES = ("changed", "missing", "unreadable", "extra")
_CHUNK = 256
_READERS = 8

POLICIES = ("orientation", "truncated", "max_pixels")


@dataclass
class DigestReport:
    """What `compare_digests` found.

    Attributes:
        listed: images at the source, those that repeat a key left out; they are `duplicates`.
        same: images that are what their record was made from.
        changed, unreadable: images that are something else now, and such that cannot be read any more.
        missing: records whose image is not at the source; extra: images without a record.
        failed: images that the store has a failure of.
        without_digest: records that do not say what they were made from.
        kept: kind of difference -> (key, what there is to say of it) of the first MOST_KEPT.
    """

    store: str
    source: str
    listed: int = 0
    duplicates: int = 0
    same: int = 0
    changed: int = 0
    unreadable: int = 0
    missing: int = 0
    extra: int = 0
    failed: int = 0
    without_digest: int = 0
    kept: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: {name: [] for name in DIFFERENCES})

    @property
    def ok(self) -> bool:
        return not any(getattr(self, name) for name in DIFFERENCES)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else DataError.exit_code

    def to_dict(self) -> dict[str, Any]:
        counts = {name: value for name, value in self.__dict__.items() if name != "kept"}
        listed = {name: [{"key": key, "about": about} for key, about in rows] for name, rows in self.kept.items()}
        return {**counts, "ok": self.ok, "keys": listed}


Tell = Callable[[str, str, str], None]


def compare_digests(
    stores: Sequence[str],
    source: str,
    key_rule: str | None = None,
    on_difference: Tell = lambda kind, key, about: None,
    progress: Callable[[], None] = lambda: None,
) -> DigestReport:
    """Read every image of a source once and compare its digest with that of its record.

    Args:
        stores: as for `open_store`.
        source, key_rule: as for `extract`; the rule is that of the store unless another is given.
        on_difference: called with (kind, key, what there is to say of it) of those that are kept, as they are met.
        progress: called after each image.

    Raises:
        InputNotFound: there is nothing at the source.
        DataError: no record has a digest, as in a store that was converted from another system's cache.
    """
    store = open_store(stores, verify="never")
    listing = open_source(source, key_rule, _key_rule(store))
    policy = _policy(store)
    report = DigestReport(", ".join(map(str, store.paths)), source)

    def differ(kind: str, key: str, about: str) -> None:
        setattr(report, kind, getattr(report, kind) + 1)
        if len(report.kept[kind]) < MOST_KEPT:
            report.kept[kind].append((key, about))
            on_difference(kind, key, about)

    met = array("Q")
    with ThreadPoolExecutor(_READERS) as readers:
        try:
            for items in _chunks(listing.items(), report):
                _compare_chunk(store, items, policy, report, differ, readers, progress)
                met.extend(hash_keys([item.key.encode() for item in items]).tolist())
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise
    for key in _missing(store, np.sort(np.frombuffer(met, np.uint64) if met else np.empty(0, np.uint64))):
        differ("missing", key, "no image at the source")
    if report.without_digest and not (report.same or report.changed or report.unreadable):
        raise DataError(
            f"the records of {report.store} do not say what images they were made from: caches of other systems keep "
            "no digests; `roivault identify` compares features instead"
        )
    return report


def _chunks(items: Iterator[Item], report: DigestReport) -> Iterator[list[Item]]:
    """Entries with keys of their own; a job takes the first of those that share one, and so does this."""
    seen = SeenKeys()
    while batch := list(islice(items, _CHUNK)):
        chunk = seen.split(batch)
        report.listed += len(chunk.items)
        report.duplicates += len(chunk.duplicates)
        yield chunk.items


def _compare_chunk(
    store: RegionStore, items: Sequence[Item], policy: DecodePolicy, report: DigestReport, differ: Tell,
    readers: ThreadPoolExecutor, progress: Callable[[], None],
) -> None:  # fmt: skip
    keys = [item.key for item in items]
    digests = {regions.key: regions.source_digest for regions in store.get_many(keys, missing="skip")}
    held = list(store.holds(keys))  # True: a record, False: a failure
    wanted = [item for item in items if digests.get(item.key)]
    found = dict(zip((item.key for item in wanted), readers.map(lambda i: _digest(i, policy), wanted), strict=True))
    for item, record in zip(items, held, strict=True):
        progress()
        if item.key not in digests:
            if record is False:
                report.failed += 1
            else:
                differ("extra", item.key, item.source)
        elif digests[item.key] is None:
            report.without_digest += 1
        elif isinstance(found[item.key], ImageError):
            differ("unreadable", item.key, f"{found[item.key].kind}: {found[item.key].message}")
        elif found[item.key] == digests[item.key]:
            report.same += 1
        else:
            differ("changed", item.key, item.source)


def _digest(item: Item, policy: DecodePolicy) -> bytes | ImageError:
    try:
        return xxhash.xxh3_128_digest(item.locator.read(item.key, policy))
    except ImageError as error:
        return error


def _missing(store: RegionStore, met: np.ndarray) -> Iterator[str]:
    """Keys with a record that are not among the sorted hashes."""
    keys = store.keys()
    while batch := list(islice(keys, _CHUNK)):
        hashes = hash_keys([key.encode() for key in batch])
        yield from (key for key, there in zip(batch, np.isin(hashes, met), strict=True) if not there)


def _key_rule(store: RegionStore) -> str | None:
    """How the store's keys were last made; None when it does not say."""
    rules = [made["key"] for shard in store.manifest.shards for made in shard.provenance if "key" in made]
    return rules[-1] if rules else None


def _policy(store: RegionStore) -> DecodePolicy:
    choices = store.manifest.fingerprint or {}
    return DecodePolicy(**{name: choices[name] for name in POLICIES if name in choices})
