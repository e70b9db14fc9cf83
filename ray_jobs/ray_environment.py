"""Settings that Ray reads from the environment, made before it is imported; it is neither imported nor needed here."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from cache import UsageError

LOOPBACK = "127.0.0.1"


def prepare_environment(address: str | None) -> str | None:
    """Set up quiet, private operation; what the user has set stays, and all of it once a program has imported Ray.

    A cluster of the job's own listens on the loopback interface alone and asks for a token that only its processes
    know. A cluster that is there is met with the user's token if there is one.

    Args:
        address: what the user asked for.

    Returns:
        the address to connect to; None for a cluster of the job's own.

    Raises: UsageError: an address at which a job cannot be, but only be seen from afar.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address and "://" in address:
        raise UsageError(
            f"{address} is no address of a Ray cluster for a job: on one of its machines give --address auto, such as "
            "by `ray job submit`"
        )
    if address == "local":
        address = None
    if "ray" in sys.modules:
        return address
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of results that nobody waits for any more
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a model on the CPU need not be kept from seeing GPUs
    }
    if address is None or address.rpartition(":")[0] in (LOOPBACK, "localhost"):
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on every system this makes a host of loopback alone
    if address is None:
        if "RAY_AUTH_MODE" not in os.environ:
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    else:
        settings["RAY_AUTH_MODE"] = "token" if _has_token() else "disabled"
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return address


def _has_token() -> bool:
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return named or (Path.home() / ".ray" / "auth_token").exists()
