"""The first stage of every engine: one input read and decoded, whatever goes wrong becoming its failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import xxhash

from cache import Failure
from extractor.images import DecodePolicy, ImageError, pixel_count

from .sources import Item
from .work import Task

DECODE_BYTES_PER_PIXEL = 20  # at the peak of decoding, for the hungriest formats (WebP, 16-bit PNG)


def fetch(task: Task, policy: DecodePolicy) -> bytes | Failure | None:
    """The encoded image of a task; None if it is the one that the task's record was made from."""
    item = task.item
    data = attempt(item, lambda: item.locator.read(item.key, policy))
    if isinstance(data, bytes) and task.digest is not None and xxhash.xxh3_128_digest(data) == task.digest:
        return None
    return data


def needed(data: bytes | Failure | None, policy: DecodePolicy) -> int:
    """Bytes of memory that decoding takes; 0 if there is nothing to decode."""
    if not isinstance(data, bytes) or (pixels := pixel_count(data)) > policy.max_pixels:
        return 0
    return len(data) + DECODE_BYTES_PER_PIXEL * pixels


def attempt(item: Item, step: Callable[[], Any]) -> Any:
    """What `step` returns, or the failure of the item that it ended in."""
    try:
        return step()
    except ImageError as error:
        return replace(error.failure(), source=item.source)
    except MemoryError:
        message = "there was not enough memory to decode it; free some, then run again with --retry-failed"
        return Failure(item.key, "out_of_memory", message, item.source)
    except Exception as error:  # a codec's bug must not cost the other images
        return Failure(item.key, "decode_error", f"{type(error).__name__}: {error}", item.source)
