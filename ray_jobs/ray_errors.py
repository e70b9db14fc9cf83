"""Errors of our own code that come back from other processes."""

from __future__ import annotations

from typing import NoReturn

from ray.exceptions import RayTaskError

from cache import RoivaultError


def raise_bug(error: RayTaskError) -> NoReturn:
    """Raise what code of ours raised in another process: deliberate errors as they are, others with their story."""
    if isinstance(error.cause, RoivaultError):
        raise error.cause
    raise RuntimeError(str(error.cause or error)) from error
