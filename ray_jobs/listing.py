"""The listing of a job: a source streamed ahead in its own thread, each key once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import xxhash

from .sources import Item, Source
from .tally import Tally

FIRST_CHUNK, LARGEST_CHUNK = 16, 1024  # small at first, so that the first image is at work at once
CHUNKS_AHEAD = 32  # that many images are known in advance, so that the time left can be told
CHUNK_BYTES, BYTES_AHEAD = 2**22, 2**27  # of images that travel with their items, since a stream leaves them behind


@dataclass(frozen=True)
class Chunk:
    """Consecutive entries of a listing: those with a key of their own, and those whose key an earlier one has."""

    items: list[Item]
    duplicates: list[Item]
    seconds: float = 0.0  # that listing them took

    def __len__(self) -> int:
        return len(self.items) + len(self.duplicates)

    @property
    def carried(self) -> int:
        """Bytes of images that travel with the items."""
        return sum(item.carried for item in self.items)


class SeenKeys:
    """The keys listed so far, 24 bytes each: 128 bits of the key's hash and 64 of its source's.

    Kept as sorted runs of doubling length, so that adding is amortised and a look-up is a few binary searches.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # [3, n] uint64, sorted by the first row

    def split(self, items: list[Item]) -> Chunk:
        """Drop entries that repeat both key and source, set aside those that repeat a key, remember the rest."""
        hashes = _hashes(items)
        earlier = [_find(run, hashes) for run in self._runs]
        kept, duplicates, new, here = [], [], [], {}
        for index, (item, high, low, source) in enumerate(zip(items, *hashes.tolist(), strict=True)):
            first = next((found[index] for found in earlier if index in found), here.get((high, low)))
            if first is None:
                here[high, low] = source
                kept.append(item)
                new.append(index)
            elif first != source:
                duplicates.append(item)
        self._add(hashes[:, new])
        return Chunk(kept, duplicates)

    def _add(self, hashes: np.ndarray) -> None:
        while self._runs and self._runs[-1].shape[1] <= hashes.shape[1]:
            hashes = np.concatenate([self._runs.pop(), hashes], axis=1)
        if hashes.size:
            self._runs.append(np.ascontiguousarray(hashes[:, np.argsort(hashes[0])]))


def _take(items: Iterator[Item], most: int) -> list[Item]:
    """The next items, fewer than `most` at the end or when those that carry their images get heavy."""
    taken, carried = [], 0
    for item in islice(items, most):
        taken.append(item)
        carried += item.carried
        if carried >= CHUNK_BYTES:
            break
    return taken


def _hashes(items: list[Item]) -> np.ndarray:
    """[3, n] uint64: the two halves of the key's hash, and the source's hash."""
    keys = b"".join(xxhash.xxh3_128_digest(item.key.encode()) for item in items)
    # the locator too: `source` is made printable, so two file names that are no text may share one
    sources = b"".join(xxhash.xxh3_64_digest(f"{item.source}\0{item.locator!r}".encode()) for item in items)
    return np.vstack([np.frombuffer(keys, np.uint64).reshape(-1, 2).T, np.frombuffer(sources, np.uint64)])


def _find(run: np.ndarray, hashes: np.ndarray) -> dict[int, int]:
    """The source hash in `run` of each column whose key is there."""
    at = np.minimum(np.searchsorted(run[0], hashes[0]), run.shape[1] - 1)
    hits = np.flatnonzero((run[:2, at] == hashes[:2]).all(axis=0))
    return dict(zip(hits.tolist(), run[2, at[hits]].tolist(), strict=True))


class Listing:
    """Chunks of a source, listed ahead by a thread so that a slow folder does not hold up the model.

    Args:
        source: what to list.
        tally: is told how much is listed so far, ahead of what `next` has returned.
        limit: stop after this many entries.

    Errors of the source are raised by `next`.
    """

    def __init__(self, source: Source, tally: Tally, limit: int | None = None):
        self.exhausted = False
        self._source, self._tally, self._limit = source, tally, limit
        self._ready: queue.Queue = queue.Queue(CHUNKS_AHEAD)
        self._first: Chunk | None = None
        self._closed = threading.Event()
        self._put_bytes = self._got_bytes = 0  # carried by the items that were listed, and by those taken
        self._thread = threading.Thread(target=self._run, name="listing", daemon=True)
        self._thread.start()

    def peek(self, timeout: float) -> bool:
        """Whether a chunk is ready, waiting for it up to `timeout` seconds."""
        self._first = self.next(timeout)
        return self._first is not None

    def next(self, timeout: float) -> Chunk | None:
        """The next chunk; None if there is none within `timeout` seconds, or none left (`exhausted`)."""
        if (first := self._first) is not None:
            self._first = None
            return first
        if self.exhausted:
            return None
        try:
            got = self._ready.get(timeout=timeout) if timeout else self._ready.get_nowait()
        except queue.Empty:
            return None
        if isinstance(got, Chunk):
            self._got_bytes += got.carried
            return got
        self.exhausted = True
        if got is not None:
            raise got
        return None

    def close(self) -> None:
        """Stop listing."""
        self._closed.set()

    def _run(self) -> None:
        try:
            for chunk in self._chunks():
                self._tally.listed += len(chunk)
                self._tally.cut_short += sum(item.hides for item in chunk.items + chunk.duplicates)
                if not self._put(chunk):
                    return
            self._tally.complete = True
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, value: Chunk | BaseException | None) -> bool:
        carried = value.carried if isinstance(value, Chunk) else 0
        while not self._closed.is_set():
            if carried and self._put_bytes - self._got_bytes > BYTES_AHEAD:
                time.sleep(0.02)
                continue
            try:
                self._ready.put(value, timeout=0.2)
                self._put_bytes += carried
                return True
            except queue.Full:
                continue
        return False

    def _chunks(self) -> Iterator[Chunk]:
        seen, items, left, size = SeenKeys(), self._source.items(), self._limit, FIRST_CHUNK
        while left is None or left > 0:
            begin = time.perf_counter()
            batch = _take(items, size if left is None else min(size, left))
            chunk = replace(seen.split(batch), seconds=time.perf_counter() - begin)
            if not batch:
                return
            if left is not None:
                left -= len(chunk)
            size = min(size * 2, LARGEST_CHUNK)
            if len(chunk):
                yield chunk
