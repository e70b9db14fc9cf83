"""What Ray raises, told apart: errors of our code, of a process, of the infrastructure."""

from __future__ import annotations

from typing import NoReturn

from ray.exceptions import RayActorError, RayTaskError

from cache import RoivaultError


def raise_bug(error: RayTaskError) -> NoReturn:
    """Raise what code of ours raised in another process: deliberate errors as they are, others with their story."""
    if isinstance(error.cause, RoivaultError):
        raise error.cause
    raise RuntimeError(str(error.cause or error)) from error


def node_died(error: RayActorError) -> bool:
    """Whether an actor is gone because its node is: Ray has no type for it."""
    return "node" in str(error).lower() and "died" in str(error).lower() and "node_id" not in str(error)
